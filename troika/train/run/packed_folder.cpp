#include "troika/train/run/packed_folder.h"

#include <algorithm>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/net/bytes.h"

namespace troika::train {

namespace {

void put_text(std::string& to, std::string_view text) {
  const size_t at = to.size();
  to.resize(at + sizeof(uint64_t));
  net::put<uint64_t>(to.data() + at, text.size());
  to += text;
}

std::string_view take_text(std::string_view& from) {
  const auto size = from.size() < sizeof(uint64_t) ? 0 : net::take<uint64_t>(from.data());
  TROIKA_CHECK(from.size() >= sizeof(uint64_t) && size <= from.size() - sizeof(uint64_t),
               "a whole state");
  const auto text = from.substr(sizeof(uint64_t), size);
  from.remove_prefix(sizeof(uint64_t) + size);
  return text;
}

}  // namespace

std::string packed(const std::filesystem::path& folder) {
  std::string result;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    put_text(result, std::filesystem::relative(entry.path(), folder).string());
    put_text(result, read_file(entry.path()));
  }
  return result;
}

void unpack(std::string_view text, const std::filesystem::path& folder) {
  while (!text.empty()) {
    const std::filesystem::path name(take_text(text));
    TROIKA_CHECK(name.is_relative() && std::ranges::find(name, "..") == name.end(),
                 "a file within the checkpoint");
    std::filesystem::create_directories((folder / name).parent_path());
    write_file_atomically(folder / name, std::string(take_text(text)));
  }
}

}  // namespace troika::train
