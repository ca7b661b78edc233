// When checkpoints are written, and which are kept. Unless a case says otherwise, Lightning 2.6.6
// does the same with the same options and scores; its file names count epochs from 0.
#include "troika/train/callbacks/model_checkpoint.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <set>

#include "tests/support/errors.h"
#include "tests/train/numbers.h"
#include "troika/base/config.h"
#include "troika/base/temporary_folder.h"
#include "troika/base/text.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/train/run/fit_context.h"
#include "troika/train/trainer.h"

namespace troika::train {
namespace {

using testing::HasSubstr;

using Scores = std::vector<double>;

// Each validation logs one of the given scores, on all ranks.
class ScoredTask : public Task {
 public:
  explicit ScoredTask(Scores scores)
      : Task(std::make_shared<torch::nn::LinearImpl>(2, 2)), scores_(std::move(scores)) {}
  void on_validation_epoch_end(FitContext& c) override {
    c.log->log("score", scores_.at(next_++), {.sync_dist = true});
  }

 private:
  const Scores scores_;
  size_t next_ = 0;
};

class KeptCheckpoints : public testing::Test {
 protected:
  KeptCheckpoints() {
    options_.run.folder = folder_.path().string();
    options_.run.overwrite = true;
    options_.trainer.enable_progress_bar = false;
    options_.trainer.max_epochs = 3;
    options_.trainer.loggers = {};
    options_.data.global_batch_size = 2;  // 4 steps an epoch
    options_.checkpoint.save_last = "false";
  }
  void run(const Scores& scores, const TrainOptions& options, int ranks = 1) {
    comm::local::run(ranks, [&](comm::Group group) {
      ScoredTask task(scores);
      Trainer(options, group).fit(task, Numbers(), Numbers());
    });
  }
  void run(const Scores& scores) { run(scores, options_); }

  std::filesystem::path checkpoints(const std::string& run = "run") const {
    return folder_ / run / "checkpoints";
  }
  // Without the epoch: "12" for epoch=3-step=12, "12-v1" for epoch=3-step=12-v1.
  static std::string step_of(const std::string& name) {
    const auto at = name.find("step=");
    return at == std::string::npos ? name : name.substr(at + 5);
  }
  std::set<std::string> kept(const std::string& run = "run") const {
    std::set<std::string> names;
    if (!std::filesystem::exists(checkpoints(run))) return names;
    for (const auto& entry : std::filesystem::directory_iterator(checkpoints(run))) {
      if (!entry.is_symlink()) {
        EXPECT_TRUE(names.insert(step_of(entry.path().filename())).second)
            << "the same state twice: " << entry.path();
      }
    }
    return names;
  }
  static std::set<std::string> words(const std::string& text) {
    const auto list = split(text, ' ');
    return text.empty() ? std::set<std::string>() : std::set<std::string>(list.begin(), list.end());
  }
  // Returns the target of a link, or an empty text if there is no link.
  std::string link(const std::string& name, const std::string& run = "run") const {
    std::error_code none;
    const auto target = std::filesystem::read_symlink(checkpoints(run) / name, none);
    EXPECT_EQ(!none, std::filesystem::exists(checkpoints(run) / name)) << "leads nowhere";
    return none ? "" : step_of(target);
  }

  const TemporaryFolder folder_;
  TrainOptions options_;
};

struct Case {
  const char* options;  // of `checkpoint`, or with their section
  const Scores& scores;
  const char* kept;  // steps
  const char *best, *last;
};

TEST_F(KeptCheckpoints, AreThoseOfLightning) {
  const Scores three{3, 1, 2}, six{3, 1, 2, 5, 4, 6}, equal{1, 1, 1}, bad{NAN, 3, 2};
  const std::vector<Case> cases{
      // Without a metric.
      {"", three, "12", "12", "12"},
      {"save_top_k=0", three, "", "", ""},
      {"save_top_k=0 save_last=true", three, "12", "", "12"},
      {"save_top_k=0 save_last=link", three, "12", "", "12"},
      {"save_top_k=-1", three, "4 8 12", "12", "12"},
      // Lightning refuses to keep two by no metric.
      {"save_top_k=2", three, "8 12", "12", "12"},
      // The best.
      {"monitor=score", three, "8", "8", "8"},
      {"monitor=score mode=max", three, "4", "4", "4"},
      {"monitor=score save_top_k=2", three, "8 12", "8", "12"},
      {"monitor=score save_last=true", three, "8 12", "8", "12"},
      {"monitor=score save_last=link", three, "8", "8", "8"},
      {"monitor=score save_top_k=2", equal, "4 8", "4", "8"},
      {"monitor=score save_top_k=2", bad, "8 12", "12", "12"},
      // Validations inside of epochs.
      {"monitor=score trainer.val_check_interval=2", six, "4", "4", "4"},
      {"monitor=score save_top_k=-1 trainer.val_check_interval=2", six, "2 4 6 8 10 12", "4", "12"},
      {"monitor=score save_top_k=-1 trainer.val_check_interval=2 save_on_train_epoch_end=true", six,
       "4 8 12", "4", "12"},
      {"monitor=score save_top_k=-1 save_on_train_epoch_end=false", three, "4 8 12", "8", "12"},
      // Lightning refuses a metric that comes with the end of the epoch alone.
      {"monitor=train/epoch_loss save_top_k=-1 trainer.val_check_interval=2", six, "4 6 8 10 12",
       "any", "12"},
      // Steps.
      {"every_n_epochs=0 every_n_train_steps=3 save_top_k=-1", three, "3 6 9 12", "12", "12"},
      {"every_n_epochs=0 every_n_train_steps=2 save_top_k=-1 monitor=score "
       "trainer.val_check_interval=2",
       six, "2 4 6 8 10 12", "4", "12"},
      // A checkpoint that is due before the first validation, or right before a validation, waits
      // for it. (Lightning writes none in epoch 0 here, and judges step 8 by the score of step 4.)
      {"every_n_epochs=0 every_n_train_steps=2 save_top_k=-1 monitor=score", three, "4 6 8 10 12",
       "8", "12"},
      // The last one does not wait for a metric (in Lightning it does).
      {"every_n_epochs=0 every_n_train_steps=3 save_last=true monitor=score trainer.max_steps=3 "
       "trainer.limit_val_batches=0",
       three, "3", "", "3"},
      // Without epochs the end of the run is not among the best. (Lightning writes a last one at
      // each
      // epoch's end.)
      {"every_n_epochs=0", three, "", "", ""},
      {"every_n_epochs=0 save_last=link", three, "", "", ""},
      {"every_n_epochs=0 save_top_k=0 save_last=link", three, "12", "", "12"},
      {"every_n_epochs=0 save_last=true monitor=score", three, "12", "", "12"},
      {"every_n_epochs=0 save_last=true every_n_train_steps=5 save_top_k=-1", three, "5 10 12",
       "12", "12"},
      {"every_n_epochs=0 save_last=true every_n_train_steps=6 save_top_k=-1", three, "6 12", "12",
       "12"},
      {"every_n_epochs=0 save_last=true trainer.max_steps=6", three, "6", "6", "6"},
      // Steps and epochs, each state once. (Lightning refuses both.)
      {"every_n_train_steps=2 save_top_k=-1", three, "2 4 6 8 10 12", "12", "12"},
      {"every_n_train_steps=2", three, "12", "12", "12"},
      // Steps 4 and 5 have the score 1.
      {"every_n_train_steps=1 save_top_k=2 monitor=score save_last=true "
       "trainer.val_check_interval=2",
       six, "4 5 12", "4", "12"},
      // The end of the run too. (In Lightning: not.)
      {"every_n_epochs=2 save_top_k=-1", three, "8 12", "12", "12"},
      {"save_top_k=-1 trainer.check_val_every_n_epoch=2", three, "8 12", "12", "12"},
      {"save_top_k=-1 trainer.limit_val_batches=0", three, "4 8 12", "12", "12"},
      // By time.
      {"every_n_epochs=0 train_time_interval=00:00:00:00 save_top_k=-1 trainer.max_steps=3", three,
       "1 2 3", "3", "3"},
  };
  for (const bool beside : {false, true}) {
    for (const auto& one : cases) {
      SCOPED_TRACE(fmt::format("{}, async {}", one.options, beside));
      auto options = options_;
      options.checkpoint.async = beside ? "true" : "false";
      auto table = make_table(options);
      for (const auto& option : words(one.options)) {
        const auto equals = option.find('=');
        const auto key = option.substr(0, equals);
        table.set(key.find('.') == std::string::npos ? "checkpoint." + key : key,
                  option.substr(equals + 1));
      }
      run(one.scores, options, beside ? 2 : 1);
      EXPECT_EQ(kept(), words(one.kept));
      EXPECT_TRUE(one.best == std::string("any") || one.best == link("best")) << link("best");
      EXPECT_EQ(link("last"), one.last);
      std::filesystem::remove_all(folder_ / "run");
    }
  }
}

TEST_F(KeptCheckpoints, TakeAnotherNameWhereTheirsIsTaken) {
  options_.checkpoint.save_top_k = -1;
  run({3, 1, 2});
  run({3, 1, 2});
  EXPECT_EQ(kept(), words("4 4-v1 8 8-v1 12 12-v1"));
  EXPECT_EQ(link("best"), "12-v1");
}

// Checkpoints of an earlier run of the name are not removed, and `best` does not lead there.
TEST_F(KeptCheckpoints, OfAnEarlierRunStay) {
  run({3, 1, 2});
  options_.checkpoint.save_top_k = 0;
  options_.checkpoint.save_last = "true";
  run({3, 1, 2});
  EXPECT_EQ(kept(), words("12 12-v1"));
  EXPECT_EQ(link("best"), "");
  EXPECT_EQ(link("last"), "12-v1");
}

// A resumed run knows which checkpoints were the best before, so it ends with the same folders.
TEST_F(KeptCheckpoints, AreKnownAfterAResume) {
  const Scores first{5, 2, 4}, second{3, 6, 7};
  options_.checkpoint.save_last = "true";
  options_.checkpoint.monitor = "score";
  options_.checkpoint.save_top_k = 2;
  options_.trainer.ckpt_path = "last";
  run(first);
  EXPECT_EQ(kept(), words("8 12"));
  options_.trainer.max_epochs = 6;
  run(second);
  EXPECT_EQ(kept(), words("8 16 24"));
  EXPECT_EQ(link("best"), "8");
  options_.trainer.ckpt_path = "best";
  options_.trainer.max_epochs = 3;
  run({3});
  EXPECT_EQ(link("last"), "12");
}

// The link `last` moves on. A checkpoint that the user chose by its name or as `best` is kept.
TEST_F(KeptCheckpoints, OneThatWasChosenToResumeFromStays) {
  options_.trainer.max_epochs = 2;
  run({3, 1});
  EXPECT_EQ(kept(), words("8"));
  const auto resume = [&](const std::string& from, int64_t epochs) {
    options_.trainer.ckpt_path = from;
    options_.trainer.max_epochs = epochs;
    run(Scores(static_cast<size_t>(epochs), 0.5));
  };
  resume("last", 4);
  EXPECT_EQ(kept(), words("16"));
  resume((checkpoints() / "epoch=4-step=16").string(), 6);
  EXPECT_EQ(kept(), words("16 24"));
  resume("best", 8);
  EXPECT_EQ(kept(), words("16 24 32"));
  EXPECT_EQ(link("best"), "32");
}

TEST_F(KeptCheckpoints, OfAnotherRunAreNotTouched) {
  options_.checkpoint.monitor = "score";
  options_.run.name = "other";
  run({5, 4, 3});  // checkpoints of the same names
  options_.run.name = "run";
  run({5, 4, 3});
  const auto before = checkpoints() / "epoch=3-step=12";
  options_.run.name = "other";
  options_.trainer.ckpt_path = before.string();
  options_.trainer.max_epochs = 4;
  run({9});
  EXPECT_EQ(link("best", "other"), "16");
  EXPECT_EQ(kept("other"), words("12 16"));
  EXPECT_TRUE(std::filesystem::exists(before));
  EXPECT_EQ(link("best"), "12");
}

// A run that was asked to stop in the last pass of an epoch validates the saved state when it
// resumes.
TEST_F(KeptCheckpoints, AreJudgedAfterAResumeToo) {
  options_.checkpoint.monitor = "score";
  options_.trainer.ckpt_path = "last";
  {
    ScoredTask task({});
    options_.trainer.num_sanity_val_steps = 0;
    Trainer stopped(options_, comm::local::alone());
    stopped.ask_to_stop([micro_batches = 0]() mutable {
      return ++micro_batches >= 4 ? cluster::StopRequest::save_and_stop
                                  : cluster::StopRequest::none;
    });
    EXPECT_EQ(stopped.fit(task, Numbers(), Numbers()).status, "stopped");
  }
  EXPECT_EQ(kept(), words("4"));
  EXPECT_EQ(link("best"), "");
  run({1, 2, 3});
  EXPECT_EQ(kept(), words("4"));
  EXPECT_EQ(link("best"), "4");
}

TEST_F(KeptCheckpoints, NeedAMetricThatIsLogged) {
  options_.checkpoint.monitor = "validation/los";
  for (const char* interval : {"1.0", "2"}) {
    options_.trainer.val_check_interval = interval;
    try {
      run({1, 2, 3, 4, 5, 6});
      FAIL();
    } catch (const Error& problem) {
      EXPECT_THAT(problem.what(),
                  HasSubstr("[train] model_checkpoint cannot monitor validation/los"));
      EXPECT_THAT(problem.what(), HasSubstr("did you mean validation/loss"));
    }
  }
}

TEST_F(KeptCheckpoints, OptionsAreRefusedThatMeanNothing) {
  options_.checkpoint.save_last = "copy";
  EXPECT_ERROR(run({}), ErrorKind::usage,
               "[config] checkpoint.save_last; got \"copy\", expected one of true, false, link "
               "(did you mean "
               "true?)");
  options_.checkpoint.save_last = "link";
  auto table = make_table(options_);
  table.parse("[checkpoint]\nsave_last = true\nsave_on_train_epoch_end = false", "x.toml");
  EXPECT_EQ(options_.checkpoint.save_last, "true");
  EXPECT_EQ(options_.checkpoint.save_on_train_epoch_end, "false");
  EXPECT_ERROR(table.set("checkpoint.save_last", "links"), ErrorKind::usage,
               "[config] checkpoint.save_last; got \"links\", expected one of true, false, link "
               "(did you mean link?)");
}

}  // namespace
}  // namespace troika::train
