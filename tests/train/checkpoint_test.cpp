#include "troika/train/checkpoint.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/train/options.h"
#include "troika/train/safetensors.h"

namespace troika::train {
namespace {

using std::filesystem::exists;
using std::filesystem::read_symlink;

// With parameters, buffers of two types and an integer one.
std::shared_ptr<torch::nn::Module> make_module(uint64_t seed) {
  torch::manual_seed(seed);
  return torch::nn::Sequential(torch::nn::Conv2d(3, 4, 3), torch::nn::BatchNorm2d(4)).ptr();
}

class Checkpoint : public testing::Test {
 protected:
  std::filesystem::path save(int64_t epoch) {
    return save_checkpoint(folder_.path(), *module_, options_, {.epoch = epoch, .step = 7 * epoch});
  }
  std::filesystem::path link() const { return folder_ / "last.safetensors"; }

  const TemporaryFolder folder_;
  const std::shared_ptr<torch::nn::Module> module_ = make_module(1);
  TrainOptions options_;
};

TEST_F(Checkpoint, LastIsTheModule) {
  save(1);
  const auto other = make_module(2);
  load_checkpoint(link(), *other);
  const auto expected = nn::named_state(*module_), loaded = nn::named_state(*other);
  ASSERT_EQ(loaded.size(), expected.size());
  for (size_t i = 0; i < loaded.size(); ++i) {
    EXPECT_TRUE(loaded[i].tensor.equal(expected[i].tensor)) << loaded[i].name;
  }
}

TEST_F(Checkpoint, TheLinkMovesAndTheOldFileGoes) {
  const auto first = save(1);
  EXPECT_EQ(first, folder_ / "epoch=1-step=7.safetensors");
  EXPECT_EQ(read_symlink(link()), "epoch=1-step=7.safetensors");
  const auto second = save(2);
  EXPECT_EQ(second, folder_ / "epoch=2-step=14.safetensors");
  EXPECT_EQ(read_symlink(link()), "epoch=2-step=14.safetensors");
  EXPECT_FALSE(exists(first));
  EXPECT_EQ(save(2), second);
  EXPECT_TRUE(exists(second)) << "saved again under the same name";
}

TEST_F(Checkpoint, AForeignTargetOfTheLinkSurvives) {
  const TemporaryFolder elsewhere;
  std::filesystem::create_directory(folder_ / "epoch=1");
  const std::filesystem::path targets[] = {
      elsewhere / "epoch=9-step=9.safetensors", folder_ / "best.safetensors", "best.safetensors",
      "epoch=1/-step=9.safetensors",
      std::filesystem::relative(elsewhere / "epoch=8-step=8.safetensors", folder_.path())};
  for (const auto& target : targets) {
    SCOPED_TRACE(target);
    const auto file = folder_.path() / target;
    write_file_atomically(file, "mine");
    std::filesystem::remove(link());
    std::filesystem::create_symlink(target, link());
    save(3);
    EXPECT_EQ(read_symlink(link()), "epoch=3-step=21.safetensors");
    EXPECT_EQ(read_file(file), "mine");
  }
}

TEST_F(Checkpoint, OptionsComeBackWithoutReadingTensors) {
  options_.model.name = "gpt";
  options_.model.heads = 3;
  options_.data.context = 17;
  options_.data.files = {"a b", "c\td"};
  const auto file = save(1);
  const auto options = read_checkpoint_options(link());
  EXPECT_EQ(options.model.name, "gpt");
  EXPECT_EQ(options.model.heads, 3);
  EXPECT_EQ(options.data.context, 17);
  EXPECT_EQ(options.data.files, options_.data.files);
}

TEST_F(Checkpoint, RefusesAFileWithoutOptions) {
  const auto file = folder_ / "x.safetensors";
  save_safetensors(file, {{"a", at::zeros({1})}});
  EXPECT_ERROR(read_checkpoint_options(file), ErrorKind::usage,
               "[train] " + file.string() +
                   " does not say which model it is of; got no troika.options in its metadata, "
                   "expected a checkpoint that troika train wrote");
}

}  // namespace
}  // namespace troika::train
