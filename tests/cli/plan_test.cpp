// `troika plan`, and `troika train --plan`.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tests/support/subprocess.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/base/text.h"

namespace troika {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using testing_support::run_program;

const std::string kPlannedRun =
    " --model.name=mlp --model.hidden_width=4 --data.train_samples=32 --data.validation_samples=8"
    " --data.global_batch_size=8 --trainer.max_epochs=1 --trainer.enable_progress_bar=false"
    " --trainer.threads=1";

class PlanCommand : public testing::Test {
 protected:
  testing_support::Outcome troika(const std::string& arguments) {
    return run_program("cd " + folder_.path().string() + " && exec " + TROIKA_PROGRAM + " " +
                       arguments);
  }
  void write(const std::string& file, const std::string& text) {
    write_file_atomically(folder_ / file, text);
  }
  static std::string replaced(std::string text, const std::string& what, const std::string& by) {
    const auto at = text.find(what);
    EXPECT_NE(at, std::string::npos) << what << " in " << text;
    return at == std::string::npos ? text : text.replace(at, what.size(), by);
  }
  // The bytes of the weights that the run left, without the file's header, which has the options.
  std::string weights(const std::string& run) {
    const auto file = read_file(folder_ / "runs" / run / "checkpoints/last/model.safetensors");
    uint64_t header = 0;
    std::memcpy(&header, file.data(), sizeof(header));
    return file.substr(sizeof(header) + header);
  }
  const TemporaryFolder folder_;
};

TEST_F(PlanCommand, ExplainsAConfigurationInAnyWorld) {
  write("run.toml", "[trainer]\nstrategy = \"hybrid_shard\"\naccumulate_grad_batches = 2\n");
  const auto here = troika("plan run.toml");
  EXPECT_EQ(here.exit_code, 0) << here.err;
  EXPECT_THAT(here.out, HasSubstr("# mesh       1 rank: data=1\n"));
  const auto there = troika("plan run.toml --nodes 2 --ranks 8 --trainer.precision=bf16-mixed");
  EXPECT_THAT(there.out,
              AllOf(StartsWith("# strategy   zero3\n# mesh       8 ranks: data=8\n"),
                    HasSubstr("# actions    0F0 0B0 0F1 0B1 0REDUCE 0STEP\n"),
                    HasSubstr("ZeRO stage 3 shards optimizer states, gradients and parameters "
                              "over 4 ranks\n"),
                    HasSubstr("# memory     precision bf16-mixed, all activations kept\n"),
                    HasSubstr("\nzero_group = 4  #")));
  // The output is a plan.
  write("plan.toml", there.out);
  EXPECT_EQ(troika("plan --plan plan.toml").out, there.out);
  write("cluster.toml",
        "[[devices]]\nhost = \"a\"\ncount = 3\n[[devices]]\nhost = \"b\"\ncount = 3\n");
  EXPECT_THAT(troika("plan run.toml --cluster cluster.toml").out, HasSubstr("over 3 ranks\n"));
  const auto uneven = troika("plan run.toml --nodes 2 --ranks 5");
  EXPECT_NE(uneven.exit_code, 0);
  EXPECT_THAT(uneven.err, HasSubstr("[plan] ranks of a plan; got 5 on 2 nodes, expected equally "
                                    "many on each node"));
  EXPECT_NE(troika("plan --ranks 4 --cluster cluster.toml").exit_code, 0);
}

TEST_F(PlanCommand, TrainRunsAnEditedPlan) {
  const auto plan = troika("plan --ranks 2 --trainer.strategy=zero1" + kPlannedRun).out;
  write("same.toml", plan);
  EXPECT_THAT(troika("memory --ranks 2 --plan same.toml" + kPlannedRun).out,
              HasSubstr("> 32         none       zero1 "));
  write("edited.toml", replaced(plan, "micro_batches = 1", "micro_batches = 2"));
  const auto train = [&](const std::string& name, const std::string& arguments) {
    const auto outcome =
        troika("train --trainer.devices=2 --run.name=" + name + kPlannedRun + arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return weights(name);
  };
  const auto by_name = train("name", " --trainer.strategy=zero1");
  EXPECT_TRUE(train("same", " --plan same.toml") == by_name);
  const auto by_edit = train("edited", " --plan edited.toml");
  EXPECT_FALSE(by_edit == by_name);
  EXPECT_TRUE(train("accumulated",
                    " --trainer.strategy=zero1 --trainer.accumulate_grad_batches=2") == by_edit);
  // The run resumes, and is judged, by what its plan said, without the file.
  std::filesystem::remove(folder_ / "edited.toml");
  const auto judged = troika("test runs/edited --trainer.devices=1");
  EXPECT_EQ(judged.exit_code, 0) << judged.err;
}

TEST_F(PlanCommand, RefusesWhatItCannotRun) {
  const auto plan = troika("plan").out;
  const auto refused = [&](const std::string& what, const std::string& by,
                           const std::string& more = "") {
    write("plan.toml", replaced(plan, what, by));
    const auto outcome = troika("train --plan plan.toml" + kPlannedRun + more);
    EXPECT_NE(outcome.exit_code, 0) << by;
    return outcome.err;
  };
  // The number of the line with this key.
  const auto at = [&](const std::string& key) {
    const auto line = std::ranges::count(plan.substr(0, plan.find("\n" + key + " = ")), '\n') + 2;
    return fmt::format(" (trainer.plan:{})", line);
  };
  EXPECT_THAT(refused("\"data=1\"", "\"pipeline=2 data=1\""),
              AllOf(HasSubstr("a pipeline axis without a schedule of stages"),
                    HasSubstr("schedule.name one_stage" + at("name"))));
  EXPECT_THAT(refused("\"data=1\"", "\"data=1 expert=2\""),
              AllOf(HasSubstr("the expert axis of a plan cannot be run yet"),
                    HasSubstr("mesh.axes data=1 expert=2" + at("axes"))));
  EXPECT_THAT(refused("\"data=1\"", "\"data=3\""),
              HasSubstr("a plan for another world; got 3 ranks: mesh.axes data=3" + at("axes")));
  EXPECT_THAT(refused("\"data=1\"", "\"tensor=2 data=-1\""),
              HasSubstr("mesh `tensor=2 data=-1`" + at("axes") + "; got 1 ranks for data = -1"));
  EXPECT_THAT(refused("cut = \"\"", "cut = \"stem|head\""),
              AllOf(HasSubstr("stages without a schedule of stages; got stages.cut stem|head"),
                    HasSubstr(at("cut"))));
  // A plan of one stage names the blocks of its model, as a plan with a cut does.
  EXPECT_THAT(refused("cut = \"\"", "cut = \"stem,layer1,head\""),
              AllOf(HasSubstr("the cut `stem,layer1,head` (trainer.plan:"),
                    HasSubstr(") has a name that is not the next block's"),
                    HasSubstr("got stem, expected layers.0")));
  EXPECT_THAT(refused("cut = \"\"", "cut = \"layers.0\""),
              AllOf(HasSubstr("the cut `layers.0` (trainer.plan:"),
                    HasSubstr(") has blocks that are in no stage; got ")));
  EXPECT_THAT(refused("parameters = 0", "parameters = 7"),
              AllOf(HasSubstr("a plan for another model; got a model of "),
                    HasSubstr("expected 7, as stages.parameters of the plan" + at("parameters"))));
  const auto memory = troika("memory --plan plan.toml" + kPlannedRun);
  EXPECT_EQ(memory.exit_code, 2) << memory.out;
  EXPECT_THAT(memory.err, HasSubstr("a plan for another model; got a model of "));
  EXPECT_THAT(refused("zero_group", "zero_grup"),
              AllOf(HasSubstr("unknown key exchange.zero_grup (plan.toml:"),
                    HasSubstr("did you mean exchange.zero_group?")));
  EXPECT_THAT(refused("precision = \"32\"", "precision = \"bf16-mixd\""),
              HasSubstr("did you mean bf16-mixed?"));
  EXPECT_THAT(
      refused("\"data=1\"", "\"data=-1\"", " --trainer.strategy=zero3"),
      HasSubstr("[plan] trainer.strategy beside --plan; got zero3, expected no such "
                "argument, because the plan sets it (edit plan.toml, or leave --plan out)"));
  // Also where it says what the default says, which the plan may not.
  EXPECT_THAT(refused("precision = \"32\"", "precision = \"64\"", " --trainer.precision 32"),
              HasSubstr("[plan] trainer.precision beside --plan; got 32"));
  EXPECT_NE(troika("train --plan missing.toml" + kPlannedRun).exit_code, 0);
  EXPECT_THAT(troika("plan --plan auto --trainer.num_nodes=2" + kPlannedRun).err,
              HasSubstr("trainer.num_nodes and the launcher disagree; got num_nodes = 2"));
  // `plan` says what it means, and what cannot be run of it.
  write("pipeline.toml", replaced(plan, "\"data=1\"", "\"pipeline=2 data=2\""));
  const auto explained = troika("plan --plan pipeline.toml");
  EXPECT_THAT(explained.out, HasSubstr("# mesh       4 ranks: pipeline=2 data=2\n"));
  EXPECT_THAT(explained.err, HasSubstr("a pipeline axis without a schedule of stages"));
  EXPECT_NE(explained.exit_code, 0);
}

// Two processes that the program starts, beside one that accumulates the same micro-batches.
TEST_F(PlanCommand, TrainsAPipelineOfProcesses) {
  const auto explained = troika("plan --trainer.strategy=gpipe --ranks=4 --mesh.data=2");
  EXPECT_THAT(explained.out,
              AllOf(HasSubstr("# strategy   gpipe\n# mesh       4 ranks: pipeline=2 data=2\n"),
                    HasSubstr("# schedule   gpipe, 4 micro-batches a step, averaged\n")));
  const std::string run = kPlannedRun + " --model.hidden_layers=3 --trainer.precision=64";
  const auto alone = troika("train --run.name=alone --trainer.accumulate_grad_batches=2" + run);
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
  const auto cut = troika(
      "train --run.name=cut --trainer.strategy=1f1b --pipeline.micro_batches=2 "
      "--trainer.devices=2" +
      run);
  EXPECT_EQ(cut.exit_code, 0) << cut.err;
  EXPECT_THAT(cut.err, HasSubstr("1f1b, 2 ranks on 1 node"));
  const auto summary = [&](const std::string& name) {
    return nlohmann::json::parse(read_file(folder_ / "runs" / name / "summary.json"));
  };
  for (const char* key : {"train_loss", "validation_loss"}) {
    EXPECT_NEAR(summary("cut").at(key).get<double>(), summary("alone").at(key).get<double>(), 1e-10)
        << key;
  }
  const auto judged = troika("validate runs/cut --trainer.devices=1");
  EXPECT_EQ(judged.exit_code, 0) << judged.err;
  const auto refused = troika(
      "train --run.name=bad --trainer.strategy=zb-v --pipeline.cut=a --trainer.devices=2" + run);
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("the cut"));
}

// docs/plan.md shows what the program prints.
TEST_F(PlanCommand, IsDocumentedAsItIs) {
  const auto page = read_file(std::filesystem::path(TROIKA_SOURCE_DIR) / "docs/plan.md");
  const auto outcome = troika("plan --trainer.strategy=hybrid_shard --nodes=2 --ranks=8");
  EXPECT_THAT(page, HasSubstr(outcome.out));
}

}  // namespace
}  // namespace troika
