// A run of a small GPT with its own cache folder. Tests can read the choices that it made at its
// start.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "troika/base/temporary_folder.h"
#include "troika/compat/torch.h"
#include "troika/data/dataset.h"
#include "troika/train/options/options.h"
#include "troika/train/tuning/tuning_file.h"

namespace troika::train {

class Tokens : public data::Dataset {
 public:
  int64_t size() const override { return 64; }
  data::Batch load(std::span<const int64_t> indices, std::optional<uint64_t>) const override {
    const auto tokens = at::zeros({static_cast<int64_t>(indices.size()), 8}, at::kLong);
    return {tokens, tokens};
  }
  int64_t num_classes() const override { return 5; }
  std::vector<int64_t> input_shape() const override { return {8}; }
};

class TunedRun : public testing::Test {
 protected:
  void SetUp() override {
    const char* before = std::getenv("XDG_CACHE_HOME");
    if (before) before_ = before;
    ::setenv("XDG_CACHE_HOME", folder_.path().c_str(), 1);
    options_.run.folder = (folder_ / "runs").string();
    options_.trainer.max_epochs = 1;
    options_.trainer.enable_progress_bar = false;
    options_.data.batch_size = 4;
    options_.model = {
        .name = "gpt", .vocab_size = 5, .context = 8, .layers = 1, .heads = 2, .width = 8};
  }
  void TearDown() override {
    before_ ? ::setenv("XDG_CACHE_HOME", before_->c_str(), 1) : ::unsetenv("XDG_CACHE_HOME");
  }
  std::vector<TuningEntry> timed() const { return TuningFile::of_user().read(); }

  const TemporaryFolder folder_;
  TrainOptions options_;
  std::optional<std::string> before_;
};

}  // namespace troika::train
