#include "troika/train/checkpoint_index.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/compat/torch.h"

namespace troika::train {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 2;
constexpr const char* kModelPrefix = "model.";
constexpr const char* kChecksum = "crc32c";

Error damaged(const std::filesystem::path& checkpoint, std::string got, std::string expected) {
  return {"train",
          ErrorKind::usage,
          {.what = "checkpoint " + checkpoint.string() + " is damaged",
           .got = std::move(got),
           .expected = std::move(expected),
           .hint = "trainer.ckpt_path may name the folder of another checkpoint"}};
}

Json to_json(const FileDigests& files) {
  Json result = Json::object();
  for (const auto& [name, digest] : files) {
    result[name] = {{"bytes", digest.bytes}, {kChecksum, digest.crc32c}};
  }
  return result;
}

FileDigests from_json(const Json& files) {
  FileDigests result;
  for (const auto& [name, entry] : files.items()) {
    result[name] = {entry.at("bytes").get<int64_t>(), entry.at(kChecksum).get<uint32_t>()};
  }
  return result;
}

// The text of an index, which ends with the checksum of what it says before.
std::string sealed(Json index) {
  index[kChecksum] = crc32c(index.dump());
  return index.dump(1) + "\n";
}

}  // namespace

std::string rank_file(int rank) {
  return rank == 0 ? "training.safetensors" : fmt::format("rank-{}.safetensors", rank);
}

void write_index(const std::filesystem::path& checkpoint, const CheckpointIndex& index,
                 const NamedTensors& model, const NamedTensors& rest) {
  Json json{{"format", kFormat},
            {"ranks", index.ranks},
            {"epoch", index.info.epoch},
            {"step", index.info.step},
            {"files", to_json(index.files)}};
  auto& tensors = json["tensors"] = Json::object();
  const auto add = [&](const std::string& name, const at::Tensor& tensor, const std::string& file,
                       const std::string& key) {
    const auto shape = tensor.sizes().vec();
    // A slice is where in the global tensor the file's begins, and how large it is.
    tensors[name] = {{"dtype", c10::toString(tensor.scalar_type())},
                     {"shape", shape},
                     {"slices",
                      {{{"file", file},
                        {"name", key},
                        {"start", std::vector<int64_t>(shape.size(), 0)},
                        {"shape", shape}}}}};
  };
  for (const auto& [name, tensor] : model) add(kModelPrefix + name, tensor, kWeightsFile, name);
  for (const auto& [name, tensor] : rest) add(name, tensor, rank_file(0), name);
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
                   .expected = fmt::format("format {}, which this version writes", kFormat)});
    }
    json.erase(kChecksum);
    if (sealed(json) == text) {
      return {.ranks = json.at("ranks").get<int>(),
              .info = {json.at("epoch").get<int64_t>(), json.at("step").get<int64_t>()},
              .files = from_json(json.at("files"))};
    }
  } catch (const nlohmann::json::exception&) {
  }
  throw damaged(checkpoint, std::string("another ") + kIndexFile, "the one that was written");
}

void check_file(const std::filesystem::path& checkpoint, const CheckpointIndex& index,
                const std::string& name) {
  const auto written = index.files.find(name);
  TROIKA_CHECK(written != index.files.end(), name + " is not a file of the checkpoint");
  const auto& expected = written->second;
  if (!std::filesystem::exists(checkpoint / name)) {
    throw damaged(checkpoint, "no " + name, fmt::format("one of {} bytes", expected.bytes));
  }
  const auto found = digest_of(checkpoint / name);
  if (found.bytes != expected.bytes) {
    throw damaged(checkpoint, fmt::format("{} of {} bytes", name, found.bytes),
                  std::to_string(expected.bytes));
  }
  if (found != expected) {
    throw damaged(checkpoint, fmt::format("{} with checksum {:08x}", name, found.crc32c),
                  fmt::format("{:08x}", expected.crc32c));
  }
}

void check_if_indexed(const std::filesystem::path& file) {
  std::error_code none;
  const auto real = std::filesystem::canonical(file, none);
  if (none || !std::filesystem::exists(real.parent_path() / kIndexFile)) return;
  const auto index = read_index(real.parent_path());
  if (index.files.contains(real.filename())) check_file(real.parent_path(), index, real.filename());
}

std::string to_text(const FileDigests& files) {
  return to_json(files).dump();
}

FileDigests digests_from_text(const std::string& text) {
  return from_json(Json::parse(text));
}

}  // namespace troika::train
