#include "troika/train/checkpoint/index.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "troika/base/checksum.h"
#include "troika/base/file.h"

namespace troika::train {

namespace {

// Who reads a checkpoint goes through its ranks one by one.
constexpr int kMostRanks = 1 << 20;

// Members keep the order in which they are added; adding one by its name looks for it first.
using Ordered = nlohmann::ordered_json;
using nlohmann::json;

// The last format with one checksum for a whole slice.
constexpr int kWholeSlices = 3;
constexpr const char* kChecksum = "crc32c";
// An index nests four deep.
constexpr int kMaxIndexNesting = 8;

Ordered slice_json(const SavedSlice& slice) {
  return {{"file", slice.file},
          {"name", slice.key},
          {"offset", slice.offset},
          {"count", slice.count},
          {kChecksum, slice.crc32c}};
}

// Adds `files` and `tensors`.
void add_members(Ordered& index, const CheckpointIndex& from) {
  Ordered files = Ordered::object(), tensors = Ordered::object();
  for (const auto& [name, file] : from.files) {
    files.get_ref<Ordered::object_t&>().emplace_back(
        name, Ordered{{"bytes", file.bytes}, {"header", file.header}});
  }
  for (const auto& [name, tensor] : from.tensors) {
    Ordered slices = Ordered::array();
    for (const auto& slice : tensor.slices) slices.push_back(slice_json(slice));
    tensors.get_ref<Ordered::object_t&>().emplace_back(
        name,
        Ordered{{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"slices", std::move(slices)}});
  }
  index["files"] = std::move(files);
  index["tensors"] = std::move(tensors);
}

std::vector<uint32_t> checksums_of(const json& slice) {
  const json& value = slice.at(kChecksum);
  if (value.is_array()) return value.get<std::vector<uint32_t>>();
  if (slice.at("count") == 0) return {};
  return {value.get<uint32_t>()};
}

// Slices of a tensor that is there already become those of one.
void add_json(CheckpointIndex& index, const json& share) {
  for (const auto& [name, entry] : share.at("files").items()) {
    index.files[name] = {entry.at("bytes").get<int64_t>(), entry.at("header").get<uint32_t>()};
  }
  for (const auto& [name, entry] : share.at("tensors").items()) {
    auto& tensor = index.tensors[name];
    auto dtype = entry.at("dtype").get<std::string>();
    auto shape = entry.at("shape").get<std::vector<int64_t>>();
    if (!tensor.slices.empty() && (dtype != tensor.dtype || shape != tensor.shape)) {
      throw Error(
          "train", ErrorKind::failure,
          {.what = "ranks disagree on what `" + name + "` of a checkpoint is",
           .got = fmt::format("{} [{}]", dtype, fmt::join(shape, ", ")),
           .expected = fmt::format("{} [{}]", tensor.dtype, fmt::join(tensor.shape, ", "))});
    }
    tensor.dtype = std::move(dtype);
    tensor.shape = std::move(shape);
    for (const auto& slice : entry.at("slices")) {
      tensor.slices.push_back({.file = slice.at("file").get<std::string>(),
                               .key = slice.at("name").get<std::string>(),
                               .offset = slice.at("offset").get<int64_t>(),
                               .count = slice.at("count").get<int64_t>(),
                               .crc32c = checksums_of(slice)});
    }
  }
}

// The text of an index, which ends with the checksum of what it says before, written without
// blanks.
std::string sealed(Ordered index) {
  index[kChecksum] = crc32c(index.dump());
  return index.dump(1) + "\n";
}

// The JSON text without blanks between its words; nothing where it nests too deeply.
std::optional<std::string> without_blanks(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      const size_t begin = i++;
      while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
      result += text.substr(begin, i + 1 - begin);
    } else if (c != ' ' && c != '\n') {
      depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
      if (depth > kMaxIndexNesting) return std::nullopt;
      result += c;
    }
  }
  return result;
}

// Whether the text ends with its own checksum, as sealed() has it. In one pass over the text.
bool is_sealed(std::string_view text) {
  const std::string before = fmt::format(",\n \"{}\": ", kChecksum);
  const size_t end = text.rfind(before);
  if (end == std::string_view::npos) return false;
  auto content = without_blanks(text.substr(0, end));
  if (!content) return false;
  *content += '}';
  return text.substr(end) == fmt::format("{}{}\n}}\n", before, crc32c(*content));
}

// Whether the name is one of the folder itself.
bool is_plain(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

// A file that the index names and that may lie elsewhere; or nothing.
std::optional<std::string> foreign_file(const CheckpointIndex& index) {
  for (const auto& [name, file] : index.files) {
    if (!is_plain(name)) return name;
  }
  for (const auto& [name, tensor] : index.tensors) {
    for (const auto& slice : tensor.slices) {
      if (!index.files.contains(slice.file)) return slice.file;
    }
  }
  return std::nullopt;
}

// Elements of the shape; nothing where their bytes, or twice as many elements, overflow 64 bits.
std::optional<int64_t> elements_of(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(elements, size, &elements)) return std::nullopt;
  }
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 8;
  return elements <= kMost ? std::optional(elements) : std::nullopt;
}

// Says what is wrong with the slices of a tensor; empty if nothing is.
std::string fault_of(const std::string& name, const SavedTensor& tensor) {
  const auto elements = [&](int64_t begin, int64_t end) {
    return fmt::format("elements {} to {} of `{}`", begin, end - 1, name);
  };
  const auto elements_there = elements_of(tensor.shape);
  if (!elements_there)
    return fmt::format("`{}` of shape [{}]", name, fmt::join(tensor.shape, ", "));
  int64_t end = 0;
  std::string before = kIndexFile;
  for (const auto& slice : tensor.slices) {
    if (slice.offset < 0 || slice.count < 0 || slice.count > *elements_there) {
      return fmt::format("{} elements of `{}` from {} on in {}", slice.count, name, slice.offset,
                         slice.file);
    }
    if (slice.offset > end) {
      return fmt::format("{}, before those of {}, in no file", elements(end, slice.offset),
                         slice.file);
    }
    if (slice.offset < end) {
      return fmt::format("{} in {} and in {}",
                         elements(slice.offset, std::min(end, slice.offset + slice.count)), before,
                         slice.file);
    }
    end = slice.offset + slice.count;
    before = slice.file;
    if (end > *elements_there) break;
  }
  const int64_t count = *elements_there;
  if (end < count)
    return fmt::format("{}, after those of {}, in no file", elements(end, count), before);
  if (end > count) return fmt::format("`{}` of {} elements in {}", name, end, before);
  return {};
}

std::string sort_slices(CheckpointIndex& index) {
  for (auto& [name, tensor] : index.tensors) {
    std::sort(tensor.slices.begin(), tensor.slices.end(),
              [](const SavedSlice& a, const SavedSlice& b) {
                return std::pair(a.offset, a.file) < std::pair(b.offset, b.file);
              });
    auto fault = fault_of(name, tensor);
    if (!fault.empty()) return fault;
  }
  return {};
}

constexpr const char* kOnce = "each element once";

}  // namespace

Error damaged_checkpoint(const std::filesystem::path& checkpoint, std::string got,
                         std::string expected) {
  return {"train",
          ErrorKind::usage,
          {.what = "checkpoint " + checkpoint.string() + " is damaged",
           .got = std::move(got),
           .expected = std::move(expected),
           .hint = "trainer.ckpt_path may name the folder of another checkpoint"}};
}

std::string rank_file(int rank) {
  return fmt::format("rank-{}.safetensors", rank);
}

std::string own_name(int rank, const std::string& name) {
  return fmt::format("rank-{}/{}", rank, name);
}

bool is_own_name(const std::string& name) {
  return name.starts_with("rank-");
}

std::string to_text(const CheckpointIndex& share) {
  Ordered index;
  add_members(index, share);
  return index.dump();
}

void add_share(CheckpointIndex& index, const std::string& text) {
  add_json(index, json::parse(text));
}

void write_index(const std::filesystem::path& checkpoint, CheckpointIndex index) {
  const auto fault = sort_slices(index);
  if (!fault.empty()) {
    throw Error("train", ErrorKind::failure,
                {.what = "the ranks' shares of a checkpoint do not fit together",
                 .got = fault,
                 .expected = kOnce});
  }
  Ordered root{{"format", kCheckpointFormat},
               {"ranks", index.ranks},
               {"epoch", index.info.epoch},
               {"step", index.info.step},
               {"chunk_bytes", index.chunk_bytes}};
  add_members(root, index);
  const std::string text = sealed(std::move(root));
  write_new_file(checkpoint / kIndexFile, [&](const File& file) { file.write(text); });
}

CheckpointIndex read_index(const std::filesystem::path& checkpoint) {
  const std::string text = read_file(checkpoint / kIndexFile);
  const auto another = damaged_checkpoint(checkpoint, std::string("another ") + kIndexFile,
                                          "the one that was written");
  try {
    if (!without_blanks(text)) throw another;
    const auto root = json::parse(text);
    const auto format = root.at("format").get<int64_t>();
    if (format != kCheckpointFormat && format != kWholeSlices) {
      throw Error("train", ErrorKind::usage,
                  {.what = "cannot read checkpoint " + checkpoint.string(),
                   .got = fmt::format("format {}", format),
                   .expected = fmt::format("format {}, which this version writes, or {}",
                                           kCheckpointFormat, kWholeSlices),
                   .hint = format < kCheckpointFormat ? "a copy of its model.safetensors "
                                                        "elsewhere serves model.weights"
                                                      : ""});
    }
    if (!is_sealed(text)) throw another;
    CheckpointIndex index{.format = format,
                          .ranks = root.at("ranks").get<int>(),
                          .info = {root.at("epoch").get<int64_t>(), root.at("step").get<int64_t>()},
                          .chunk_bytes = format == kWholeSlices
                                             ? std::numeric_limits<int64_t>::max()
                                             : root.at("chunk_bytes").get<int64_t>(),
                          .files = {},
                          .tensors = {}};
    if (index.chunk_bytes < 1 || index.ranks < 1 || index.ranks > kMostRanks) throw another;
    add_json(index, root);
    if (const auto file = foreign_file(index)) {
      throw damaged_checkpoint(checkpoint, fmt::format("{} that names `{}`", kIndexFile, *file),
                               "names of files in its folder");
    }
    auto fault = sort_slices(index);
    if (!fault.empty()) {
      throw damaged_checkpoint(checkpoint, std::string(kIndexFile) + " with " + fault, kOnce);
    }
    return index;
  } catch (const json::exception&) {
    throw another;
  }
}

}  // namespace troika::train
