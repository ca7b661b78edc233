// Suggestions for memory: every suggested choice fits by the prediction, and nothing is suggested
// if nothing fits.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/comm/mailboxes.h"
#include "troika/compat/tensor_memory.h"
#include "troika/data/make_dataset.h"
#include "troika/train/memory/remedy.h"

namespace troika::train {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class Remedy : public testing::Test {
 protected:
  Remedy() {
    compat::count_tensor_memory();
    options_.model.name = "mlp";
    options_.model.hidden_width = 512;
    options_.model.num_classes = 10;
    options_.optimizer.name = "adamw";
    options_.data.workers = 0;
  }

  // Returns the advice for a number of ranks and bytes of memory, and the prediction it is based
  // on.
  std::string advice(int ranks, double bytes) {
    predictor_.emplace(options_, *dataset_);
    const auto configured = predictor_->configured(ranks);
    return remedy(*predictor_, options_, configured, predict_choices(*predictor_, {ranks}), bytes);
  }
  double process(int ranks, int64_t batch = 0, const std::string& strategy = "ddp",
                 const std::string& recompute = "none") {
    if (!predictor_) predictor_.emplace(options_, *dataset_);
    auto choice = predictor_->configured(ranks);
    choice.batch = batch;
    choice.strategy = strategy;
    choice.recompute = recompute;
    return predictor_->predict(choice).process();
  }
  // Bytes of float32 parameters: 4 GiB, of a model that no test makes.
  double of_large_model() {
    options_.model.hidden_width = 32768;
    return process(1, 1) / 4;
  }

  const std::unique_ptr<data::Dataset> dataset_ =
      data::make_dataset({.name = "shapes", .train_samples = 1}, data::Split::train);
  TrainOptions options_;
  std::optional<MemoryPredictor> predictor_;
};

// The number behind `name` in the text; -1: it is not there.
int64_t number_behind(const std::string& name, const std::string& text) {
  const size_t at = text.find(name);
  if (at == std::string::npos) return -1;
  const auto begin = at + name.size();
  const auto end = text.find_first_not_of("0123456789", begin);
  return parse_int(text.substr(begin, end - begin)).value_or(-1);
}

TEST_F(Remedy, NamesTheFastestChoiceAndTheLargestBatchThatFit) {
  options_.model.hidden_layers = 8;
  options_.data.batch_size = 5000;
  const double bytes = 1.001 * process(2, 0, "zero2", "full");
  const auto text = advice(2, bytes);
  EXPECT_THAT(text, StartsWith("--trainer.precision=32 --trainer.recompute="));
  const auto batch = number_behind("; or --data.batch_size=", text);
  ASSERT_GT(batch, 100) << text;
  ASSERT_LT(batch, 5000) << text;
  const auto fits = process(2, batch), more = process(2, batch + 1);
  // With all digits, because a sample is a small part of the memory.
  EXPECT_TRUE(fits <= bytes && bytes < more)
      << fmt::format("{} samples: {}, {}, {}", batch, fits, bytes, more);
  EXPECT_THAT(text, Not(HasSubstr("ranks")));
}

TEST_F(Remedy, OfAGlobalBatchNamesOneThatDividesAmongTheRanks) {
  options_.data.global_batch_size = 20000;
  const auto text = advice(4, 1.001 * process(4, 2500));
  const auto batch = number_behind("--data.global_batch_size=", text);
  EXPECT_GE(batch, 10000) << text;
  EXPECT_EQ(batch % 4, 0);
}

TEST_F(Remedy, GroupsThatShareStateNeedAMultipleOfTheirRanks) {
  options_.trainer.strategy = "zero1";
  options_.zero.group_size = 2;
  predictor_.emplace(options_, *dataset_);
  const auto is_configured = [&](const MemoryPrediction& one) {
    return one.choice == predictor_->configured(4);
  };
  EXPECT_THAT(predict_choices(*predictor_, {1, 4}),
              testing::Contains(testing::Truly(is_configured)));
  EXPECT_THAT(
      [&] {
        predict_choices(*predictor_, {1, 3});
      },
      testing::ThrowsMessage<Error>(HasSubstr("zero.group_size 2 of 1 ranks")));
}

TEST_F(Remedy, MoreMachinesAreNamedWhereTheyHelp) {
  const double parameters = of_large_model();
  const double bytes = 1.5 * parameters;
  const auto text = advice(2, bytes);
  const auto ranks = number_behind("on ", text);
  ASSERT_GT(ranks, 2) << text;
  EXPECT_THAT(text, ContainsRegex("^on [0-9]+ ranks, --trainer.precision=[a-z0-9-]+ "
                                  "--trainer.recompute=[a-z]+ --trainer.strategy=zero[23] "
                                  "--data.batch_size=1 takes [0-9.]+ GiB$"));
}

TEST_F(Remedy, RanksOnSeveralMachinesHaveMailboxesBetweenThem) {
  options_.trainer.num_nodes = 2;
  predictor_.emplace(options_, *dataset_);
  auto choice = predictor_->configured(8);
  EXPECT_EQ(choice.nodes, 2);
  EXPECT_EQ(predictor_->configured(1).nodes, 1);
  const auto mailboxes = [&] { return predictor_->predict(choice).mailboxes; };
  const double on_two = mailboxes();
  EXPECT_EQ(on_two, static_cast<double>(comm::most_mailbox_bytes("auto", 8, 2)));
  choice.nodes = 1;
  EXPECT_LT(mailboxes(), on_two);
}

TEST_F(Remedy, NothingIsAdvisedWhereNothingHelps) {
  const auto text = advice(2, 0.5 * of_large_model());
  EXPECT_THAT(text, AllOf(StartsWith("no precision, recomputation, strategy, batch or number of "
                                     "machines makes it fit: with --trainer.precision="),
                          ContainsRegex("on 2048 ranks, the start, for which each rank makes the "
                                        "whole model, takes [0-9.]+ GiB"),
                          HasSubstr("take a smaller model, or machines with more memory")));
}

}  // namespace
}  // namespace troika::train
