#include "troika/server/snapshot.h"

#include <fmt/format.h>

#include "troika/base/checksum.h"
#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/text.h"

namespace troika::server {

namespace {

constexpr const char* kIndexFile = "index";
constexpr const char* kIndexTitle = "troika parameter server, version 1";

[[noreturn]] void refuse_index(const std::filesystem::path& folder, const std::string& got) {
  throw Error("server", ErrorKind::usage,
              {.what = "no whole snapshot in " + folder.string(), .got = got});
}

}  // namespace

SavedRange write_range(const std::filesystem::path& folder, uint32_t range,
                       const std::string& server, const std::string& content) {
  SavedRange saved{.range = range,
                   .file = fmt::format("range-{:06}-{:016x}", range, fingerprint(server)),
                   .bytes = content.size(),
                   .crc = crc32c(content)};
  write_new_file(folder / saved.file, [&](const File& file) { file.write(content); });
  return saved;
}

std::string read_range(const std::filesystem::path& folder, const SavedRange& saved) {
  auto content = read_file(folder / saved.file);
  const uint32_t crc = crc32c(content);
  if (content.size() == saved.bytes && crc == saved.crc) return content;
  throw Error("server", ErrorKind::failure,
              {.what = "the snapshot's file " + (folder / saved.file).string() + " was changed",
               .got = fmt::format("{} bytes, CRC-32C {:08x}", content.size(), crc),
               .expected = fmt::format("{} bytes, {:08x}", saved.bytes, saved.crc)});
}

void write_index(const std::filesystem::path& folder, const SnapshotIndex& index) {
  std::string text = fmt::format("{}\nstep {}\n", kIndexTitle, index.step);
  for (const auto& table : index.tables) text += "table " + to_text(table) + "\n";
  for (const auto& [range, file, bytes, crc] : index.ranges) {
    text += fmt::format("range {} {} {} {}\n", range, file, bytes, crc);
  }
  text += fmt::format("crc32c {}\n", crc32c(text));
  write_new_file(folder / kIndexFile, [&](const File& file) { file.write(text); });
}

SnapshotIndex read_index(const std::filesystem::path& folder) {
  std::string text;
  try {
    text = read_file(folder / kIndexFile);
  } catch (const Error& error) {
    refuse_index(folder, error.what());
  }
  const auto last = text.rfind("crc32c ");
  if (last == std::string::npos ||
      trim(text.substr(last)) != fmt::format("crc32c {}", crc32c(text.substr(0, last)))) {
    refuse_index(folder, "an index with another checksum");
  }
  const auto lines = split(trim(text.substr(0, last)), '\n');
  if (lines[0] != kIndexTitle) refuse_index(folder, lines[0]);
  SnapshotIndex index;
  for (size_t i = 1; i < lines.size(); ++i) {
    const auto words = split(lines[i], ' ');
    const auto number = [&](size_t word) {
      const auto value = word < words.size() ? parse_int(words[word]) : std::nullopt;
      if (!value) refuse_index(folder, lines[i]);
      return *value;
    };
    if (words[0] == "step") {
      index.step = number(1);
    } else if (words[0] == "table") {
      index.tables.push_back(parse_table(lines[i].substr(6)));
    } else if (words[0] == "range" && words.size() == 5 &&
               number(1) == static_cast<int64_t>(index.ranges.size())) {
      index.ranges.push_back({.range = static_cast<uint32_t>(number(1)),
                              .file = words[2],
                              .bytes = static_cast<uint64_t>(number(3)),
                              .crc = static_cast<uint32_t>(number(4))});
    } else {
      refuse_index(folder, lines[i]);
    }
  }
  return index;
}

}  // namespace troika::server
