#include "troika/train/checkpoint/index.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "troika/base/file.h"
#include "troika/compat/torch.h"
#include "troika/train/checkpoint/crc32c.h"

namespace troika::train {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 3;
constexpr const char* kChecksum = "crc32c";

Json slice_json(const SavedSlice& slice) {
  return {{"file", slice.file},
          {"name", slice.key},
          {"offset", slice.offset},
          {"count", slice.count},
          {kChecksum, slice.crc32c}};
}

Json to_json(const CheckpointIndex& index) {
  Json json{{"files", Json::object()}, {"tensors", Json::object()}};
  for (const auto& [name, file] : index.files) {
    json["files"][name] = {{"bytes", file.bytes}, {"header", file.header}};
  }
  for (const auto& [name, tensor] : index.tensors) {
    Json slices = Json::array();
    for (const auto& slice : tensor.slices) slices.push_back(slice_json(slice));
    json["tensors"][name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"slices", std::move(slices)}};
  }
  return json;
}

// Slices of a tensor that is there already become those of one.
void add_json(CheckpointIndex& index, const Json& json) {
  for (const auto& [name, entry] : json.at("files").items()) {
    index.files[name] = {entry.at("bytes").get<int64_t>(), entry.at("header").get<uint32_t>()};
  }
  for (const auto& [name, entry] : json.at("tensors").items()) {
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
                               .crc32c = slice.at(kChecksum).get<uint32_t>()});
    }
  }
}

// The text of an index, which ends with the checksum of what it says before.
std::string sealed(Json index) {
  index[kChecksum] = crc32c(index.dump());
  return index.dump(1) + "\n";
}

// What is wrong with the slices of a tensor, or nothing.
std::string fault_of(const std::string& name, const SavedTensor& tensor) {
  const auto elements = [&](int64_t begin, int64_t end) {
    return fmt::format("elements {} to {} of `{}`", begin, end - 1, name);
  };
  int64_t end = 0;
  std::string before = kIndexFile;
  for (const auto& slice : tensor.slices) {
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
  }
  const int64_t count = c10::multiply_integers(tensor.shape);
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
  return to_json(share).dump();
}

void add_share(CheckpointIndex& index, const std::string& text) {
  add_json(index, Json::parse(text));
}

void write_index(const std::filesystem::path& checkpoint, CheckpointIndex index) {
  const auto fault = sort_slices(index);
  if (!fault.empty()) {
    throw Error("train", ErrorKind::failure,
                {.what = "the ranks' shares of a checkpoint do not fit together",
                 .got = fault,
                 .expected = kOnce});
  }
  Json json{{"format", kFormat},
            {"ranks", index.ranks},
            {"epoch", index.info.epoch},
            {"step", index.info.step}};
  json.update(to_json(index));
  write_file_atomically(checkpoint / kIndexFile, sealed(std::move(json)));
}

CheckpointIndex read_index(const std::filesystem::path& checkpoint) {
  const std::string text = read_file(checkpoint / kIndexFile);
  try {
    auto json = Json::parse(text);
    const auto format = json.at("format").get<int64_t>();
    if (format != kFormat) {
      throw Error("train", ErrorKind::usage,
                  {.what = "cannot read checkpoint " + checkpoint.string(),
                   .got = fmt::format("format {}", format),
                   .expected = fmt::format("format {}, which this version writes", kFormat),
                   .hint = format < kFormat
                               ? "a copy of its model.safetensors elsewhere serves model.weights"
                               : ""});
    }
    json.erase(kChecksum);
    if (sealed(json) == text) {
      CheckpointIndex index{
          .ranks = json.at("ranks").get<int>(),
          .info = {json.at("epoch").get<int64_t>(), json.at("step").get<int64_t>()},
          .files = {},
          .tensors = {}};
      add_json(index, json);
      auto fault = sort_slices(index);
      if (!fault.empty()) {
        throw damaged_checkpoint(checkpoint, std::string(kIndexFile) + " with " + fault, kOnce);
      }
      return index;
    }
  } catch (const nlohmann::json::exception&) {
  }
  throw damaged_checkpoint(checkpoint, std::string("another ") + kIndexFile,
                           "the one that was written");
}

}  // namespace troika::train
