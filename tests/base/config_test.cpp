#include "troika/base/config.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/support/errors.h"

namespace troika::config {
namespace {

struct Options {
  int64_t devices = 1;
  double lr = 0.1;
  bool shuffle = true;
  std::string name = "run";
  std::vector<std::string> files;

  Table table() {
    Table table;
    table.add("trainer.devices", &devices, "processes", at_least(int64_t{1}));
    table.add("optim.lr", &lr, "learning rate", above(0.0));
    table.add("data.shuffle", &shuffle, "shuffle");
    table.add("data.files", &files, "text files");
    table.add("run.name", &name, "name of the run", one_of({"run", "other"}));
    return table;
  }
};

TEST(Config, AnAliasSetsTheKeyItStandsFor) {
  Options options;
  auto table = options.table();
  table.add_alias("trainer.gpus", "trainer.devices");
  table.parse("[trainer]\ngpus = 4\n", "x.toml");
  EXPECT_EQ(options.devices, 4);
  table.set("trainer.gpus", "3");
  EXPECT_EQ(options.devices, 3);
  EXPECT_ERROR(table.set("trainer.gpus", "0"), ErrorKind::usage,
               "[config] trainer.devices; got 0, expected an integer >= 1");
  EXPECT_EQ(table.to_toml().find("gpus"), std::string::npos);
}

TEST(Config, WhatOtherProgramsCallAKeyIsHintedAt) {
  Options options;
  auto table = options.table();
  table.add_known_as("learning_rate", "optim.lr");
  for (const char* typed : {"optim.learning_rate", "learning_rate", "trainer.Learning-Rate"}) {
    EXPECT_ERROR(table.set(typed, "1"), ErrorKind::usage,
                 std::string("[config] unknown key ") + typed + " (did you mean optim.lr?)");
  }
  EXPECT_EQ(table.known_key("rate"), "");
  EXPECT_EQ(options.lr, 0.1);
}

TEST(Config, ReadsEveryTypeFromToml) {
  Options options;
  auto table = options.table();
  table.parse(
      "[trainer]\ndevices = 4\n[optim]\nlr = 1\n[data]\nshuffle = false\nfiles = [\"a\", "
      "\"b\"]\n[run]\nname = 'other'\n",
      "x.toml");
  EXPECT_EQ(options.devices, 4);
  EXPECT_EQ(options.lr, 1.0);
  EXPECT_FALSE(options.shuffle);
  EXPECT_EQ(options.name, "other");
  EXPECT_EQ(options.files, (std::vector<std::string>{"a", "b"}));
}

TEST(Config, ATextWithAnArgumentMayBeATable) {
  std::string policy = "none";
  Table table;
  table.add("trainer.recompute", &policy, "policy");
  table.parse("[trainer]\nrecompute = {budget = \"6GiB\"}\n", "x.toml");
  EXPECT_EQ(policy, "budget:6GiB");
  EXPECT_ERROR(
      table.parse("[trainer]\nrecompute = {budget = \"6GiB\", every = \"2\"}\n", "x.toml"),
      ErrorKind::usage,
      "[config] trainer.recompute (x.toml:2); got { budget = '6GiB', every = '2' }, expected a "
      "string");
}

TEST(Config, ArgumentsOverrideFiles) {
  Options options;
  auto table = options.table();
  table.parse("[optim]\nlr = 0.5\n", "x.toml");
  table.set_argument("--optim.lr=2e-3");
  table.set_argument("--data.files=a,b");
  table.set_argument("--data.shuffle=false");
  EXPECT_EQ(options.lr, 2e-3);
  EXPECT_EQ(options.files.size(), 2u);
  EXPECT_FALSE(options.shuffle);
}

TEST(Config, ACountMayBeAFlag) {
  int64_t count = 0, plain = 0;
  Table table;
  table.add("run.try", &count, "batches to try", count_or_flag());
  table.add("run.plain", &plain, "a count", count_from(0));
  table.parse("[run]\ntry = true\n", "run.toml");
  EXPECT_EQ(count, 1);
  for (const auto& [text, value] : {std::pair("false", 0), {"7", 7}, {"true", 1}, {"0", 0}}) {
    table.set("run.try", text);
    EXPECT_EQ(count, value);
  }
  EXPECT_ERROR(table.set("run.try", "yes"), ErrorKind::usage,
               "[config] run.try; got \"yes\", expected an integer");
  EXPECT_ERROR(table.parse("[run]\nplain = true\n", "run.toml"), ErrorKind::usage,
               "[config] run.plain (run.toml:2); got true, expected an integer");
}

TEST(Config, ListsMayBeOfIntegers) {
  std::vector<int64_t> steps{1};
  Table table;
  table.add("optim.milestones", &steps, "steps");
  EXPECT_THAT(table.to_markdown(), testing::HasSubstr("`[1]` | a list of integers |"));
  table.parse("[optim]\nmilestones = [30, 60]\n", "x.toml");
  EXPECT_EQ(steps, (std::vector<int64_t>{30, 60}));
  EXPECT_EQ(table.to_toml(), "[optim]\nmilestones = [30, 60]  # steps\n");
  table.set_argument("--optim.milestones=5,-7");
  EXPECT_EQ(steps, (std::vector<int64_t>{5, -7}));
  table.set_argument("--optim.milestones=");
  EXPECT_TRUE(steps.empty());
  EXPECT_ERROR(table.set_argument("--optim.milestones=5,x"), ErrorKind::usage,
               "[config] optim.milestones; got \"5,x\", expected a list of integers");
  EXPECT_ERROR(table.parse("[optim]\nmilestones = [\"a\"]\n", "x.toml"), ErrorKind::usage,
               "[config] optim.milestones (x.toml:2); got [ 'a' ], expected a list of integers");
}

TEST(Config, PrintedTomlReadsBackToTheSameText) {
  Options options;
  options.lr = 1;
  options.files = {"with \"quotes\"", "back\\slash", "a\nb\tc\r\x01\x7f"};
  const std::string text = options.table().to_toml();
  Options again;
  auto table = again.table();
  table.parse(text, "printed");
  EXPECT_EQ(table.to_toml(), text);
  EXPECT_EQ(again.files, options.files);
}

TEST(Config, ListsWhatIsNoLongerItsDefault) {
  Options options;
  options.name = "other";
  double none = NAN, some = NAN;
  auto table = options.table();
  table.add("early.none", &none, "a threshold");
  table.add("early.some", &some, "another");
  EXPECT_TRUE(table.changed().empty());
  table.parse("[early]\nsome = 2\n[data]\nshuffle = true\nfiles = [\"a\"]\n", "x.toml");
  const auto changed = table.changed();
  ASSERT_EQ(changed.size(), 2u) << "not data.shuffle, which was set to its default";
  EXPECT_EQ(changed[0].key, "data.files");
  EXPECT_EQ(changed[0].value, "[\"a\"]");
  EXPECT_EQ(changed[0].initial, "[]");
  EXPECT_EQ(changed[0].help, "text files");
  EXPECT_EQ(changed[1].key, "early.some");
  EXPECT_EQ(changed[1].value, "2.0");
}

TEST(Config, RefusesWhatIsWrongAndSaysWhere) {
  Options options;
  auto table = options.table();
  EXPECT_ERROR(table.parse("[trainer]\ndevcies = 2\n", "x.toml"), ErrorKind::usage,
               "[config] unknown key trainer.devcies (x.toml:2) (did you mean trainer.devices?)");
  EXPECT_ERROR(table.parse("[trainer]\ndevices = \"two\"\n", "x.toml"), ErrorKind::usage,
               "[config] trainer.devices (x.toml:2); got 'two', expected an integer");
  EXPECT_ERROR(table.parse("devices = 2\n", "x.toml"), ErrorKind::usage,
               "[config] devices (x.toml:1); got 2, expected a [section] of keys");
  EXPECT_ERROR(table.set("trainer.devices", "0"), ErrorKind::usage,
               "[config] trainer.devices; got 0, expected an integer >= 1");
  EXPECT_ERROR(table.set("optim.lr", "fast"), ErrorKind::usage,
               "[config] optim.lr; got \"fast\", expected a number");
  EXPECT_ERROR(table.set("run.name", "third"), ErrorKind::usage,
               "[config] run.name; got \"third\", expected one of run, other (did "
               "you mean other?)");
  EXPECT_ERROR(table.set_argument("--run.name"), ErrorKind::usage,
               "[config] argument; got --run.name, expected --section.name=value");
  EXPECT_ERROR(table.load("/no/such/file.toml"), ErrorKind::usage,
               "[config] the configuration does not exist; got /no/such/file.toml, expected a file "
               "in TOML");
  EXPECT_ERROR(table.set_argument("--help"), ErrorKind::usage,
               "[config] argument; got --help, expected --section.name=value (sections are data, "
               "optim, run, trainer)");
  EXPECT_EQ(options.devices, 1) << "a refused value must not be stored";
}

TEST(Config, RulesHoldUpToTheirBounds) {
  int64_t count = 1;
  double share = 0.5, seconds = 1, beta = 0.5;
  Table table;
  table.add("a.count", &count, "", between(int64_t{1}, int64_t{1'000'000'000}));
  table.add("a.share", &share, "", between(0.0, 1.0));
  table.add("a.seconds", &seconds, "", above_to(0.0, 604800.0));
  table.add("a.beta", &beta, "", from_to_below(0.0, 1.0));
  for (const char* fits : {"a.count=1", "a.count=1000000000", "a.share=0", "a.share=1",
                           "a.seconds=604800", "a.seconds=1e-3", "a.beta=0", "a.beta=0.999"}) {
    EXPECT_NO_THROW(table.set_argument(std::string("--") + fits)) << fits;
  }
  EXPECT_ERROR(table.set("a.count", "0"), ErrorKind::usage,
               "[config] a.count; got 0, expected an integer from 1 to 1000000000");
  EXPECT_ERROR(table.set("a.count", "1000000001"), ErrorKind::usage,
               "[config] a.count; got 1000000001, expected an integer from 1 to 1000000000");
  EXPECT_ERROR(table.set("a.share", "1.5"), ErrorKind::usage,
               "[config] a.share; got 1.5, expected a number from 0 to 1");
  EXPECT_ERROR(table.set("a.seconds", "0"), ErrorKind::usage,
               "[config] a.seconds; got 0.0, expected a number > 0 and <= 604800");
  EXPECT_ERROR(table.set("a.seconds", "604801"), ErrorKind::usage,
               "[config] a.seconds; got 604801.0, expected a number > 0 and <= 604800");
  EXPECT_ERROR(table.set("a.seconds", "nan"), ErrorKind::usage,
               "[config] a.seconds; got nan, expected a number > 0 and <= 604800");
  EXPECT_ERROR(table.set("a.beta", "1"), ErrorKind::usage,
               "[config] a.beta; got 1.0, expected a number >= 0 and < 1");
  EXPECT_ERROR(table.set("a.beta", "-0.1"), ErrorKind::usage,
               "[config] a.beta; got -0.1, expected a number >= 0 and < 1");
}

TEST(Config, SaysWhereTomlIsBroken) {
  Options options;
  auto table = options.table();
  EXPECT_THROW(
      try { table.parse("[trainer]\ndevices = \n", "x.toml"); } catch (const Error& error) {
        EXPECT_THAT(error.what(), testing::StartsWith("[config] x.toml:2 is not TOML; got "));
        throw;
      },
      Error);
}

TEST(Config, MarkdownListsEveryRow) {
  Options options;
  EXPECT_THAT(options.table().to_markdown(),
              testing::HasSubstr("| `devices` | `1` | an integer >= 1 | processes |"));
}

}  // namespace
}  // namespace troika::config
