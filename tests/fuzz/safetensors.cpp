// Files of weights: a header of JSON and the bytes of tensors.
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/input_file.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/checkpoint/safetensors.h"

namespace troika::fuzz {

std::vector<std::string> seeds() {
  const TemporaryFolder folder;
  const auto saved = [&](const checkpoint::NamedTensors& tensors,
                         const checkpoint::Metadata& metadata) {
    checkpoint::save_safetensors(folder / "seed", tensors, metadata);
    return read_file(folder / "seed");
  };
  return {
      saved({{"a", at::arange(6).view({2, 3})}, {"b", at::ones({4}, at::kBFloat16)}}, {{"k", "v"}}),
      saved({{"scalar", at::ones({})}, {"empty", at::ones({0, 3})}}, {}), saved({}, {})};
}

void run(std::string_view input) {
  static const TemporaryFolder folder;
  write_input(folder / "input", input);
  const auto tensors = checkpoint::load_safetensors(folder / "input");
  // An accepted file is whole: it can be written and read again.
  checkpoint::save_safetensors(folder / "again", tensors);
  checkpoint::load_safetensors(folder / "again");
}

}  // namespace troika::fuzz
