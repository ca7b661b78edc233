#include "troika/checkpoint/index.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "troika/base/checksum.h"
#include "troika/base/file.h"

namespace troika::checkpoint {

namespace {

// Limits the number of ranks, because readers of a checkpoint loop over its ranks.
constexpr int kMostRanks = 1 << 20;

// Members keep the order of insertion; inserting by name searches linearly.
using Ordered = nlohmann::ordered_json;
using nlohmann::json;

// The last format with a single checksum per range, and the last with flat ranges of whole tensors.
constexpr int kOneChecksum = 3;
constexpr int kFlatRanges = 4;
constexpr const char* kChecksum = "crc32c";
// A valid index nests four levels deep.
constexpr int kMaxIndexNesting = 8;

Ordered box_json(const SavedBox& saved) {
  Ordered result{{"file", saved.file},
                 {"name", saved.key},
                 {"offset", saved.box.offset},
                 {"size", saved.box.size}};
  if (saved.box.flat) result["flat"] = {saved.box.flat->begin, saved.box.flat->end};
  result[kChecksum] = saved.crc32c;
  return result;
}

// Adds `files` and `tensors`.
void add_members(Ordered& index, const CheckpointIndex& from) {
  Ordered files = Ordered::object(), tensors = Ordered::object();
  for (const auto& [name, file] : from.files) {
    files.get_ref<Ordered::object_t&>().emplace_back(
        name, Ordered{{"bytes", file.bytes}, {"header", file.header}});
  }
  for (const auto& [name, tensor] : from.tensors) {
    Ordered boxes = Ordered::array();
    for (const auto& saved : tensor.boxes) boxes.push_back(box_json(saved));
    tensors.get_ref<Ordered::object_t&>().emplace_back(
        name,
        Ordered{{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"boxes", std::move(boxes)}});
  }
  index["files"] = std::move(files);
  index["tensors"] = std::move(tensors);
}

std::vector<uint32_t> checksums_of(const json& saved) {
  const json& value = saved.at(kChecksum);
  if (value.is_array()) return value.get<std::vector<uint32_t>>();
  if (saved.at("count") == 0) return {};
  return {value.get<uint32_t>()};
}

layout::Range range_of(int64_t begin, int64_t count) {
  int64_t end = 0;
  return {begin, __builtin_add_overflow(begin, count, &end) ? -1 : end};
}

layout::Box box_of(const std::string& name, const std::vector<int64_t>& shape, const json& saved,
                   int64_t format) {
  if (format <= kFlatRanges) {
    return layout::Box::range(
        name, shape, range_of(saved.at("offset").get<int64_t>(), saved.at("count").get<int64_t>()));
  }
  layout::Box box{.name = name,
                  .shape = shape,
                  .offset = saved.at("offset").get<std::vector<int64_t>>(),
                  .size = saved.at("size").get<std::vector<int64_t>>()};
  if (saved.contains("flat")) {
    const auto range = saved.at("flat").get<std::array<int64_t, 2>>();
    box.flat = layout::Range{range[0], range[1]};
  }
  return box;
}

// Adds a rank's files and tensors. Boxes of a tensor that is already in the index are appended to
// it.
void add_json(CheckpointIndex& index, const json& shard) {
  for (const auto& [name, entry] : shard.at("files").items()) {
    index.files[name] = {entry.at("bytes").get<int64_t>(), entry.at("header").get<uint32_t>()};
  }
  for (const auto& [name, entry] : shard.at("tensors").items()) {
    auto& tensor = index.tensors[name];
    auto dtype = entry.at("dtype").get<std::string>();
    auto shape = entry.at("shape").get<std::vector<int64_t>>();
    if (!tensor.boxes.empty() && (dtype != tensor.dtype || shape != tensor.shape)) {
      throw Error(
          "checkpoint", ErrorKind::failure,
          {.what = "ranks disagree on what `" + name + "` of a checkpoint is",
           .got = fmt::format("{} [{}]", dtype, fmt::join(shape, ", ")),
           .expected = fmt::format("{} [{}]", tensor.dtype, fmt::join(tensor.shape, ", "))});
    }
    tensor.dtype = std::move(dtype);
    tensor.shape = std::move(shape);
    for (const auto& saved : entry.at(index.format <= kFlatRanges ? "slices" : "boxes")) {
      tensor.boxes.push_back({.file = saved.at("file").get<std::string>(),
                              .key = saved.at("name").get<std::string>(),
                              .box = box_of(name, tensor.shape, saved, index.format),
                              .crc32c = checksums_of(saved)});
    }
  }
}

// The text of an index. It ends with a checksum of the preceding content, which is computed without
// white space.
std::string sealed(Ordered index) {
  index[kChecksum] = crc32c(index.dump());
  return index.dump(1) + "\n";
}

// Removes white space outside strings from JSON text; empty if the text nests too deeply.
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

// Whether the text ends with its own checksum, as written by sealed(). Reads the text once.
bool is_sealed(std::string_view text) {
  const std::string before = fmt::format(",\n \"{}\": ", kChecksum);
  const size_t end = text.rfind(before);
  if (end == std::string_view::npos) return false;
  auto content = without_blanks(text.substr(0, end));
  if (!content) return false;
  *content += '}';
  return text.substr(end) == fmt::format("{}{}\n}}\n", before, crc32c(*content));
}

// Whether the name is that of a file directly in the folder.
bool is_plain(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

// Returns a file name in the index that may refer to a place outside the folder, if any.
std::optional<std::string> foreign_file(const CheckpointIndex& index) {
  for (const auto& [name, file] : index.files) {
    if (!is_plain(name)) return name;
  }
  for (const auto& [name, tensor] : index.tensors) {
    for (const auto& saved : tensor.boxes) {
      if (!index.files.contains(saved.file)) return saved.file;
    }
  }
  return std::nullopt;
}

// Whether the bytes and twice the elements of a tensor of this shape can be counted in 64 bits.
bool is_countable(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(elements, size, &elements)) return false;
  }
  return elements <= std::numeric_limits<int64_t>::max() / 8;
}

// Box::text() for a box with any numbers, also invalid ones.
std::string bad_box(const SavedBox& saved) {
  const auto& box = saved.box;
  auto text = fmt::format("a box of `{}` from [{}] of size [{}]", box.name,
                          fmt::join(box.offset, ", "), fmt::join(box.size, ", "));
  if (box.flat) text += fmt::format(" with elements from {} to {}", box.flat->begin, box.flat->end);
  return text + " in " + saved.file;
}

// Returns an error in the boxes of a tensor; empty if they are valid.
std::string fault_of(const std::string& name, const SavedTensor& tensor) {
  if (!is_countable(tensor.shape)) {
    return fmt::format("`{}` of shape [{}]", name, fmt::join(tensor.shape, ", "));
  }
  std::vector<layout::Box> boxes;
  for (const auto& saved : tensor.boxes) {
    try {
      saved.box.verify();
    } catch (const Error&) {
      return bad_box(saved);
    }
    boxes.push_back(saved.box);
  }
  if (boxes.empty()) return fmt::format("`{}` in no file", name);
  const auto fault = layout::cover_fault(boxes);
  if (!fault) return {};
  if (!fault->shared) {
    const auto parts =
        fault->left_out == 1 ? "1 element" : fmt::format("{} elements", fault->left_out);
    return fmt::format("{} of `{}` in no file", parts, name);
  }
  const auto& one = tensor.boxes[fault->shared->first];
  const auto& other = tensor.boxes[fault->shared->second];
  return fmt::format("elements both in `{}` in {} and in `{}` in {}", one.box.text(), one.file,
                     other.box.text(), other.file);
}

std::string sort_boxes(CheckpointIndex& index) {
  for (auto& [name, tensor] : index.tensors) {
    std::ranges::sort(tensor.boxes, [](const SavedBox& a, const SavedBox& b) {
      const auto begin = [](const SavedBox& saved) {
        return saved.box.flat ? saved.box.flat->begin : 0;
      };
      if (a.box.offset != b.box.offset) return a.box.offset < b.box.offset;
      if (begin(a) != begin(b)) return begin(a) < begin(b);
      return a.file < b.file;
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
  return {"checkpoint",
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

std::string to_text(const CheckpointIndex& shard) {
  Ordered index;
  add_members(index, shard);
  return index.dump();
}

void add_shard(CheckpointIndex& index, const std::string& text) {
  add_json(index, json::parse(text));
}

void write_index(const std::filesystem::path& checkpoint, CheckpointIndex index) {
  const auto fault = sort_boxes(index);
  if (!fault.empty()) {
    throw Error("checkpoint", ErrorKind::failure,
                {.what = "the ranks' shards of a checkpoint do not fit together",
                 .got = fault,
                 .expected = kOnce});
  }
  Ordered root{{"format", kCheckpointFormat}, {"ranks", index.ranks},
               {"epoch", index.info.epoch},   {"step", index.info.step},
               {"plan", index.info.plan},     {"chunk_bytes", index.chunk_bytes}};
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
    if (format != kCheckpointFormat && format != kFlatRanges && format != kOneChecksum) {
      throw Error("checkpoint", ErrorKind::usage,
                  {.what = "cannot read checkpoint " + checkpoint.string(),
                   .got = fmt::format("format {}", format),
                   .expected = fmt::format("format {}, which this version writes, {} or {}",
                                           kCheckpointFormat, kFlatRanges, kOneChecksum),
                   .hint = format < kCheckpointFormat ? "a copy of its model.safetensors "
                                                        "elsewhere serves model.weights"
                                                      : ""});
    }
    if (!is_sealed(text)) throw another;
    CheckpointIndex index{.format = format,
                          .ranks = root.at("ranks").get<int>(),
                          .info = {root.at("epoch").get<int64_t>(), root.at("step").get<int64_t>(),
                                   format > kFlatRanges ? root.at("plan").get<std::string>() : ""},
                          .chunk_bytes = format == kOneChecksum
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
    auto fault = sort_boxes(index);
    if (!fault.empty()) {
      throw damaged_checkpoint(checkpoint, std::string(kIndexFile) + " with " + fault, kOnce);
    }
    return index;
  } catch (const json::exception&) {
    throw another;
  }
}

}  // namespace troika::checkpoint
