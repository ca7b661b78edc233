// The examples of docs/extending.md, run. The patches of the page are applied to copies of the
// sources, which this program is linked with in place of the library's own.
#include <gmock/gmock.h>
#include <torch/torch.h>
#include <troika/troika.h>

#include <condition_variable>
#include <map>
#include <mutex>

#include "tests/comm/conformance.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/local/local.h"
#include "troika/comm/messages/group_impl.h"
#include "troika/train/options/resolve_plan.h"

using namespace troika;

namespace {

#include "extending-1.inc"
#include "extending-2.inc"
#include "extending-3.inc"
#include "extending-4.inc"

// Ranks are threads, which share LibTorch's generator: all draw the same values, one after another.
std::shared_ptr<nn::Model> draw_disc_model() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(1);
  return make_disc_model();
}
#define make_disc_model draw_disc_model
#include "extending-5.inc"
#undef make_disc_model

#include "extending-6.inc"
#include "extending-7.inc"

observe::RunSummary train_on(int ranks, const std::filesystem::path& folder) {
  train::TrainOptions options;
  options.run.folder = folder.string();
  options.run.overwrite = true;
  options.trainer.max_epochs = 40;
  options.trainer.log_every_n_steps = 1;
  options.trainer.precision = "64";
  options.trainer.enable_progress_bar = false;
  options.trainer.enable_model_summary = false;
  options.data.global_batch_size = 60;
  observe::RunSummary summary;
  comm::local::run(ranks, [&](const comm::Group& group) {
    const auto own = train_disc(group, options);
    if (group.rank() == 0) summary = own;
  });
  return summary;
}

TEST(Extending, ModelDataSetCallbackAndScheduleTrainOnAnyNumberOfRanks) {
  const TemporaryFolder folder;
  const auto alone = train_on(1, folder / "alone");
  EXPECT_LT(alone.validation_loss, 0.4);
  EXPECT_LT(alone.epochs, 40) << "the callback ends the run";
  EXPECT_GT(alone.epochs, 1);
  EXPECT_NEAR(alone.metrics.at("train/lr"),
              0.01 / (1 + 0.01 * static_cast<double>(alone.steps - 1)), 1e-9);
  const auto together = train_on(3, folder / "together");
  EXPECT_EQ(together.steps, alone.steps);
  EXPECT_NEAR(together.validation_loss, alone.validation_loss, 1e-9);
}

TEST(Extending, ATextIsASchedule) {
  const auto plan = plan_of_text("0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1\n");
  EXPECT_EQ(layout::Plan::parse(plan.text(), "plan"), plan);
  EXPECT_EQ(layout::passes_of(layout::schedule_of(plan)).text(), plan.actions);
  EXPECT_THROW(plan_of_text("0F0 0F1 0B0 0B1\n1F0 1F1 1B1\n"), Error);
}

TEST(Extending, ThePatchOfAScheduleAddsIt) {
  EXPECT_EQ(layout::passes_of(layout::make_schedule("afab", {2, 3})).text(),
            "0F0 0F1 0F2 0B0 0B1 0B2\n1F0 1F1 1F2 1B0 1B1 1B2\n");
  for (const int ranks : {1, 2, 4, 5}) {
    for (const int micro_batches : {1, 3, 8}) {
      EXPECT_NO_THROW(layout::make_schedule("afab", {ranks, micro_batches}).verify());
    }
  }
}

TEST(Extending, ThePatchOfAStrategyAddsIt) {
  train::TrainOptions options;
  options.trainer.strategy = "zero2_in_nodes";
  const auto plan = train::resolve_plan(options, layout::Cluster::uniform(2, 4));
  EXPECT_EQ(plan.strategy, "zero2");
  EXPECT_EQ(plan.exchange.method, layout::ExchangeMethod::zero);
  EXPECT_EQ(plan.exchange.zero_stage, 2);
  EXPECT_EQ(plan.exchange.zero_group, 4);
  EXPECT_NO_THROW(train::require_runnable(plan, 8));
  EXPECT_THAT(train::strategy_names(), testing::Contains("zero2_in_nodes"));
}

TEST(Extending, TheBackEndConforms) {
  for (const int size : {1, 2, 3}) {
    SCOPED_TRACE(size);
    const auto mail = std::make_shared<Mailboxes>();
    // Lifelines of threads; a back end of processes gets the one of its Meeting.
    const auto threads = comm::local::make(size);
    std::vector<std::shared_ptr<comm::GroupImpl>> ranks;
    for (int r = 0; r < size; ++r) {
      auto info = comm::world_on_one_node("mailbox", r, size);
      info.can_fail_alone = true;
      ranks.push_back(std::make_shared<MailboxGroup>(
          std::move(info), threads[static_cast<size_t>(r)]->lifeline(), mail));
    }
    comm::local::run_ranks(std::move(ranks), comm::conform);
  }
}

}  // namespace
