#include "troika/train/tuning/tuning.h"

#include <gmock/gmock.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "tests/train/tuned_run.h"
#include "troika/base/file.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/nn/zoo.h"
#include "troika/train/trainer.h"
#include "troika/train/tuning/tuning_file.h"

namespace troika::train {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

class Tuning : public testing::Test {
 protected:
  TuningEntry entry(const std::string& what, const std::string& choice) const {
    auto question = question_;
    question.what = what;
    return {.question = question, .choice = choice, .candidates = {{"slow", 2}, {"fast", 1}}};
  }

  const TemporaryFolder folder_;
  const TuningFile file_{folder_ / "cache/troika/tuning.json"};
  const TuningQuestion question_{
      .what = "attention", .cpu = "a CPU", .libtorch = "1.2.3", .threads = 2};
};

TEST_F(Tuning, IsKeptByQuestion) {
  EXPECT_THAT(file_.read(), IsEmpty());
  file_.add(entry("attention", "slow"));
  file_.add(entry("another", "slow"));
  file_.add(entry("attention", "fast"));
  EXPECT_THAT(file_.read(), SizeIs(2));
  EXPECT_EQ(file_.choice(question_), "fast");
  const auto candidates = file_.read()[1].candidates;
  ASSERT_THAT(candidates, SizeIs(2));
  EXPECT_EQ(candidates[0].name, "slow");
  EXPECT_EQ(candidates[0].seconds, 2);
  for (auto change : {+[](TuningQuestion& q) { q.cpu = "another CPU"; },
                      +[](TuningQuestion& q) { q.libtorch = "1.2.4"; },
                      +[](TuningQuestion& q) { q.threads = 1; }}) {
    auto other = question_;
    change(other);
    EXPECT_EQ(file_.choice(other), "");
  }
}

TEST_F(Tuning, GarbageIsWrittenAnew) {
  for (const char* garbage : {"", "{", "{}x", "[1]", "[{\"what\": 3}]", "\xff\xfe", "null", "7",
                              "[{\"what\":\"a\",\"cpu\":\"b\",\"libtorch\":\"c\",\"threads\":1,"
                              "\"choice\":\"d\",\"seconds\":[\"e\"]}]"}) {
    make_folder(file_.path().parent_path());
    write_file_atomically(file_.path(), garbage);
    EXPECT_EQ(file_.choice(question_), "") << garbage;
    file_.add(entry("attention", "fast"));
    EXPECT_EQ(file_.choice(question_), "fast") << garbage;
  }
}

TEST_F(Tuning, WhatCannotBeKeptEndsNoRun) {
  write_file_atomically(folder_ / "file", "");
  const TuningFile nowhere(folder_ / "file/troika/tuning.json");
  nowhere.add(entry("attention", "fast"));
  EXPECT_EQ(nowhere.choice(question_), "");
  TuningFile({}).add(entry("attention", "fast"));
}

TEST_F(Tuning, WritersAtTheSameTimeLeaveAFileThatCanBeRead) {
  std::vector<std::thread> writers;
  for (int i = 0; i < 4; ++i) {
    writers.emplace_back([&, i] {
      for (int j = 0; j < 5; ++j) file_.add(entry("attention " + std::to_string(i), "fast"));
    });
  }
  for (auto& writer : writers) writer.join();
  EXPECT_THAT(file_.read(), testing::Not(IsEmpty()));
}

TEST_F(Tuning, FollowsTheCacheFolder) {
  const char* before = std::getenv("XDG_CACHE_HOME");
  const std::string kept = before ? before : "";
  ::setenv("XDG_CACHE_HOME", "/some/cache", 1);
  EXPECT_EQ(TuningFile::of_user().path(), "/some/cache/troika/tuning.json");
  ::setenv("XDG_CACHE_HOME", "relative", 1);
  EXPECT_EQ(TuningFile::of_user().path(),
            std::filesystem::path(std::getenv("HOME")) / ".cache/troika/tuning.json");
  before ? ::setenv("XDG_CACHE_HOME", kept.c_str(), 1) : ::unsetenv("XDG_CACHE_HOME");
}

// The way that is fastest on rank 0 is not the fastest when all ranks are added up.
TEST_F(Tuning, IsTheSameOnAllRanksAndTimedOnce) {
  const std::vector<std::vector<double>> seconds{{1, 2}, {5, 2}, {5, 2}, {5, 2}};
  std::atomic<int> timed = 0;
  const auto choices = [&] {
    std::vector<std::string> all(4);
    comm::local::run(4, [&](comm::Group group) {
      const auto rank = static_cast<size_t>(group.rank());
      all[rank] = fastest(group, file_, question_, {"eager", "sdpa"}, [&] {
                    ++timed;
                    return seconds[rank];
                  }).choice;
    });
    return all;
  };
  EXPECT_THAT(choices(), ElementsAre("sdpa", "sdpa", "sdpa", "sdpa"));
  EXPECT_EQ(timed, 4);
  EXPECT_EQ(file_.read()[0].candidates[0].seconds, 16);
  EXPECT_THAT(choices(), ElementsAre("sdpa", "sdpa", "sdpa", "sdpa"));
  EXPECT_EQ(timed, 4);
  // A way that this LibTorch does not have.
  file_.add(entry("attention", "another way"));
  EXPECT_THAT(choices(), ElementsAre("sdpa", "sdpa", "sdpa", "sdpa"));
  EXPECT_EQ(timed, 8);
}

class TunedModel : public TunedRun {
 protected:
  std::string tuned() const {
    return tuned_model(options_, Tokens(), comm::local::alone(), run_folder(options_))
        .attn_implementation;
  }

  const bool has_choice_ = nn::available_attention().size() > 1;
};

TEST_F(TunedModel, TimesWhereThereIsAChoice) {
  EXPECT_EQ(tuned() != "auto", has_choice_);
  EXPECT_THAT(timed(), SizeIs(has_choice_ ? 1 : 0));
  options_.model.attn_implementation = "eager";
  EXPECT_EQ(tuned(), "eager");
  EXPECT_THAT(timed(), SizeIs(has_choice_ ? 1 : 0));
}

TEST_F(TunedModel, TimesNothingForARing) {
  options_.trainer.strategy = "cp";
  options_.mesh.context = 2;
  const auto tuned_by = [&](const std::string& method) {
    options_.mesh.context_method = method;
    comm::local::run(2, [&](const comm::Group& group) {
      const auto model = tuned_model(options_, Tokens(), group, run_folder(options_));
      EXPECT_EQ(model.attn_implementation != "auto", has_choice_ && method != "ring");
    });
  };
  tuned_by("ring");
  EXPECT_THAT(timed(), IsEmpty());
  tuned_by("all_to_all");
  EXPECT_THAT(timed(), SizeIs(has_choice_ ? 1 : 0));
}

TEST_F(TunedModel, TimesNothingWhereItIsNotToBe) {
  options_.trainer.deterministic = true;
  EXPECT_EQ(tuned(), "auto");
  options_.trainer.deterministic = false;
  options_.trainer.benchmark = false;
  EXPECT_EQ(tuned(), "auto");
  options_.trainer.benchmark = true;
  options_.model = {.name = "mlp"};
  EXPECT_EQ(tuned(), "auto");
  EXPECT_THAT(timed(), IsEmpty());
}

// Another choice would change the bits of the steps to come.
TEST_F(TunedModel, IsThatOfTheCheckpoint) {
  for (const std::string name : {"eager", "sdpa"}) {
    options_.run.name = name;
    options_.trainer.ckpt_path.clear();
    options_.model.attn_implementation = name;
    Task task(nn::make_model(options_.model));
    Trainer(options_, comm::local::alone()).fit(task, Tokens(), Tokens());
    options_.trainer.ckpt_path = "last";
    options_.model.attn_implementation = "auto";
    EXPECT_EQ(tuned(), has_choice_ ? name : "auto");
    Trainer again(options_, comm::local::alone());
    Task more(nn::make_model(options_.model));
    again.fit(more, Tokens(), Tokens());
    EXPECT_EQ(nn::attention_name(nn::attention_modules(more.module())[0]->attention()),
              has_choice_ ? name : "auto");
  }
  EXPECT_THAT(timed(), IsEmpty());
}

class Images : public data::Dataset {
 public:
  int64_t size() const override { return 8; }
  data::Batch load(std::span<const int64_t> indices, std::optional<uint64_t>) const override {
    const auto count = static_cast<int64_t>(indices.size());
    return {at::zeros({count, 3, 32, 32}), at::zeros({count}, at::kLong)};
  }
  int64_t num_classes() const override { return 10; }
  std::vector<int64_t> input_shape() const override { return {3, 32, 32}; }
};

class TunedMemoryFormat : public TunedOrder {
 protected:
  TunedMemoryFormat()
      : TunedOrder(&TrainOptions::Trainer::memory_format, "contiguous", "channels_last") {}
  void SetUp() override {
    TunedOrder::SetUp();
    options_.model = {.name = "resnet20"};
  }
  std::string tuned(const comm::Group& group) const override {
    return tuned_memory_format(options_, Images(), group, run_folder(options_));
  }
};

TEST_F(TunedMemoryFormat, IsTimedOnceForARunThatIsLongEnough) {
  const auto random = at::detail::getDefaultCPUGenerator().get_state();
  expect_timed_once("memory format of resnet20, 4 x 3 x 32 x 32, Float");
  EXPECT_TRUE(at::detail::getDefaultCPUGenerator().get_state().equal(random));
}

TEST_F(TunedMemoryFormat, IsTheOptionWhereNothingIsToBeTimed) {
  expect_the_option_if_nothing_is_timed({"mlp", "gpt", ""});
}

TEST_F(TunedMemoryFormat, IsThatOfTheCheckpoint) {
  expect_the_order_of_the_checkpoint(Images());
  EXPECT_THAT(timed(), IsEmpty());
}

// Only a clear gain is worth other bits than those of the default.
TEST_F(Tuning, TheFirstWayIsTakenWithinTheMargin) {
  const auto choice = [&](double first, double second, double margin) {
    const TuningFile none({});
    return fastest(
               comm::local::alone(), none, question_, {"first", "second"},
               [&] {
                 return std::vector{first, second};
               },
               margin)
        .choice;
  };
  EXPECT_EQ(choice(1, 0.98, 0), "second");
  EXPECT_EQ(choice(1, 0.98, 0.03), "first");
  EXPECT_EQ(choice(1, 0.96, 0.03), "second");
  EXPECT_EQ(choice(1, 2, 0.03), "first");
}

}  // namespace
}  // namespace troika::train
