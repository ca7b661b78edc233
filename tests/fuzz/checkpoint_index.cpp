// The index of a checkpoint, and the descriptions of files that ranks send to rank 0. The index
// contains a checksum of itself; inputs get a correct one, so that the code behind the check is
// reached, too.
#include <ATen/ops/arange.h>

#include <nlohmann/json.hpp>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/input_file.h"
#include "troika/base/checksum.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/checkpoint/index.h"
#include "troika/checkpoint/reader.h"

namespace troika::fuzz {

using namespace checkpoint;

namespace {

const std::filesystem::path& checkpoint() {
  static const TemporaryFolder folder;
  static const bool written = [] {
    const auto digest = save_safetensors(folder / kWeightsFile, {{"w", at::arange(6)}});
    CheckpointIndex index;
    index.files[kWeightsFile] = {digest.bytes, digest.header};
    index.tensors["model.w"] = {"I64",
                                {2, 3},
                                {{.file = kWeightsFile,
                                  .key = "w",
                                  .box = layout::Box::whole("model.w", {2, 3}),
                                  .crc32c = digest.tensors[0]}}};
    // A tensor in two boxes, one with a flat range.
    index.tensors["model.v"] = {"I64",
                                {2, 6},
                                {{.file = kWeightsFile,
                                  .key = "w",
                                  .box = layout::Box::parse("model.v(2,6)[0:2,0:3]"),
                                  .crc32c = digest.tensors[0]},
                                 {.file = kWeightsFile,
                                  .key = "w",
                                  .box = layout::Box::parse("model.v(2,6)[0:2,3:6]{0:6}"),
                                  .crc32c = digest.tensors[0]}}};
    write_index(folder.path(), index);
    return true;
  }();
  static_cast<void>(written);
  return folder.path();
}

std::string sealed(const std::string& text) {
  auto json = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return text;
  json.erase("crc32c");
  try {
    json["crc32c"] = crc32c(json.dump());
    return json.dump(1) + "\n";
  } catch (const nlohmann::json::exception&) {  // text that is no UTF-8
    return text;
  }
}

}  // namespace

std::vector<std::string> seeds() {
  return {read_file(checkpoint() / kIndexFile)};
}

void run(std::string_view input) {
  write_input(checkpoint() / kIndexFile, sealed(std::string(input)));
  const CheckpointReader reader(checkpoint(), 0);
  for (const auto& name : reader.names("")) {
    reader.read(name);
    auto box = layout::Box::whole(name, reader.shape(name));
    for (auto& size : box.size) size = (size + 1) / 2;
    reader.read(box);
  }
}

}  // namespace troika::fuzz
