#include "troika/checkpoint/checkpoint.h"

#include <gmock/gmock.h>

#include "tests/checkpoint/saved_state.h"
#include "tests/support/errors.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/checkpoint/resume.h"
#include "troika/checkpoint/safetensors.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/train/options/checkpoint_options.h"
#include "troika/train/options/options.h"

namespace troika::train {
namespace {

using std::filesystem::exists;
using std::filesystem::read_symlink;

// Returns a module with parameters, buffers of two types and an integer buffer.
std::shared_ptr<torch::nn::Module> make_module(uint64_t seed) {
  torch::manual_seed(seed);
  return torch::nn::Sequential(torch::nn::Conv2d(3, 4, 3), torch::nn::BatchNorm2d(4)).ptr();
}

class Checkpoint : public testing::Test {
 protected:
  std::filesystem::path save(int64_t epoch) {
    return checkpoint::save_checkpoint(comm::local::alone(), folder_.path(),
                                       {.model = checkpoint::model_state(*module_), .rest = {}},
                                       checkpoint_metadata(options_),
                                       {.epoch = epoch, .step = 7 * epoch});
  }
  std::filesystem::path link() const { return folder_ / "last.safetensors"; }

  const TemporaryFolder folder_;
  const std::shared_ptr<torch::nn::Module> module_ = make_module(1);
  TrainOptions options_;
};

TEST_F(Checkpoint, LastIsTheModule) {
  save(1);
  const auto other = make_module(2);
  checkpoint::load_checkpoint(link(), *other);
  const auto expected = nn::named_state(*module_), loaded = nn::named_state(*other);
  ASSERT_EQ(loaded.size(), expected.size());
  for (size_t i = 0; i < loaded.size(); ++i) {
    EXPECT_TRUE(loaded[i].second.equal(expected[i].second)) << loaded[i].first;
  }
}

TEST_F(Checkpoint, TheLinksMoveAndNothingIsOverwritten) {
  const auto first = save(1);
  EXPECT_EQ(first, folder_ / "epoch=1-step=7");
  EXPECT_EQ(checkpoint::linked_checkpoint(folder_.path(), "last"), first);
  EXPECT_EQ(checkpoint::find_checkpoint(folder_.path(), "last"), first);
  EXPECT_EQ(read_symlink(link()), "last/model.safetensors");
  const auto second = save(1);
  EXPECT_EQ(second, folder_ / "epoch=1-step=7-v1");
  EXPECT_EQ(checkpoint::find_checkpoint(folder_.path(), "last"), second);
  EXPECT_TRUE(exists(first / "model.safetensors"));
  checkpoint::remove_checkpoint(first);
  EXPECT_FALSE(exists(first));
}

TEST_F(Checkpoint, AForeignTargetOfTheLinkIsNotOurs) {
  for (const char* target : {"best", "/elsewhere/epoch=9-step=9", "a/epoch=1-step=9", "."}) {
    std::filesystem::remove(folder_ / "last");
    std::filesystem::create_symlink(target, folder_ / "last");
    EXPECT_EQ(checkpoint::linked_checkpoint(folder_.path(), "last"), "") << target;
  }
}

TEST_F(Checkpoint, LastBeforeTheFirstIsNone) {
  EXPECT_EQ(checkpoint::find_checkpoint(folder_.path(), "last"), "");
  EXPECT_EQ(checkpoint::find_checkpoint(folder_.path(), ""), "");
  EXPECT_ERROR(
      checkpoint::find_checkpoint(folder_.path(), "nowhere"), ErrorKind::usage,
      "[checkpoint] there is no checkpoint nowhere; got No such file or directory, expected "
      "last, best, the folder of a run or of a checkpoint, or a file of weights");
  const auto file = save(1);
  write_file_atomically(file / "index.json", "{\"format\": 9}");
  EXPECT_ERROR(checkpoint::checkpoint_ranks(file), ErrorKind::usage,
               "[checkpoint] cannot read checkpoint " + file.string() +
                   "; got format 9, expected format 5, which this version writes, 4 or 3");
  write_file_atomically(file / "index.json", "{\"format\": 2}");
  EXPECT_ERROR(
      checkpoint::checkpoint_ranks(file), ErrorKind::usage,
      "[checkpoint] cannot read checkpoint " + file.string() +
          "; got format 2, expected format 5, which this version writes, 4 or 3 (a copy of its "
          "model.safetensors elsewhere serves model.weights)");
}

// The tensor `own` differs on every rank, and `b` differs on rank 2.
TEST_F(Checkpoint, WhatRanksShareIsWrittenOnce) {
  comm::local::run(3, [&](comm::Group group) {
    const auto rank = group.rank();
    const checkpoint::RankState state{
        .model = {{"w", at::ones({5})}, {"b", at::full({2}, rank == 2 ? 7.0 : 1.0)}},
        .rest = {{"own", at::full({1}, double(rank))}, {"same", at::ones({3})}}};
    checkpoint::save_checkpoint(group, folder_.path(), state, checkpoint_metadata(options_),
                                {.epoch = 1, .step = 1});
  });
  const auto folder = checkpoint::find_checkpoint(folder_.path(), "last");
  EXPECT_EQ(checkpoint::checkpoint_ranks(folder), 3);
  EXPECT_EQ(checkpoint::load_safetensors(folder / "model.safetensors").size(), 2u);
  EXPECT_EQ(checkpoint::load_safetensors(folder / "rank-0.safetensors").size(), 1u) << "own";
  EXPECT_EQ(checkpoint::load_safetensors(folder / "rank-1.safetensors").size(), 2u)
      << "own and same, as it has least to write";
  EXPECT_EQ(checkpoint::load_safetensors(folder / "rank-2.safetensors").size(), 2u) << "own and b";
  for (const int rank : {0, 1, 2, 5}) {
    const auto state = checkpoint::load_rank_state(folder, rank);
    EXPECT_EQ(state.model.at(0).first, "b");
    EXPECT_EQ(state.model.at(0).second[0].item<double>(), rank == 2 ? 7 : 1);
    EXPECT_EQ(state.rest.at(0).second.item<double>(), rank == 5 ? 0 : rank);
    EXPECT_EQ(state.rest.size(), 2u);
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
  checkpoint::save_safetensors(file, {{"a", at::zeros({1})}});
  EXPECT_ERROR(read_checkpoint_options(file), ErrorKind::usage,
               "[train] " + file.string() +
                   " does not say which model it is of; got no troika.options in its metadata, "
                   "expected a checkpoint that troika train wrote");
}

}  // namespace
}  // namespace troika::train
