// `troika simulate` of a plan on a cluster.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/support/subprocess.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"

namespace troika {
namespace {

using testing::HasSubstr;

constexpr const char* kProfile = R"({"micro_batch": 4, "optimizer_factor": 1, "blocks": [
  {"name": "a", "forward_seconds": 1, "backward_input_seconds": 1, "backward_weight_seconds": 1,
   "output_bytes": 100, "saved_bytes": 1000, "parameter_bytes": 400},
  {"name": "b", "forward_seconds": 1, "backward_input_seconds": 1, "backward_weight_seconds": 1,
   "output_bytes": 0, "saved_bytes": 1000, "parameter_bytes": 400}]})";

class SimulateCluster : public testing::Test {
 protected:
  void SetUp() override {
    write_file_atomically(folder_ / "profile.json", kProfile);
    write_file_atomically(folder_ / "cluster.toml",
                          "[links.network]\nlatency = 0.5\nbandwidth = 100\n"
                          "[[devices]]\nhost = \"x\"\n[[devices]]\nhost = \"y\"\n");
    write_file_atomically(folder_ / "plan.toml",
                          "[mesh]\naxes = \"pipeline=2\"\n[schedule]\nname = \"1f1b\"\n"
                          "micro_batches = 2\n");
  }
  testing_support::Outcome troika(const std::string& arguments) {
    return testing_support::run_program("cd " + folder_.path().string() + " && exec " +
                                        TROIKA_PROGRAM + " simulate " + arguments);
  }
  nlohmann::json simulated(const std::string& arguments) {
    const auto outcome =
        troika("--profile profile.json --cluster cluster.toml --json out.json " + arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return nlohmann::json::parse(read_file(folder_ / "out.json"));
  }
  std::string refused(const std::string& arguments) {
    const auto outcome = troika(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments << outcome.out;
    return outcome.err;
  }
  const TemporaryFolder folder_;
};

TEST_F(SimulateCluster, SimulatesAPlan) {
  const auto found = simulated("--plan plan.toml --trace trace.json");
  // Rank 0: F0 F1; a message takes 1.5 s. Rank 1: F0 B0 F1 B1 from 2.5 on, then B1 of rank 0.
  EXPECT_EQ(found["step_seconds"], 2.5 + 6 + 1.5 + 2);
  EXPECT_EQ(found["ranks"].size(), 2u);
  EXPECT_EQ(found["ranks"][0]["compute_seconds"], 6);
  // In the first backward pass, before there are gradients.
  EXPECT_EQ(found["ranks"][0]["peak_bytes"], 400 * 2 + 2 * 1000 + 100);
  EXPECT_EQ(found["ranks"][0]["sent_bytes"], 200);
  EXPECT_EQ(found["ranks"][0]["busiest_link"], "host x, network, out");
  EXPECT_EQ(found["links"].size(), 4u);
  EXPECT_THAT(read_file(folder_ / "trace.json"), HasSubstr("\"0SEND_F1\""));
  EXPECT_EQ(simulated("--plan plan.toml --slow 1,2")["step_seconds"], 2.5 + 12 + 1.5 + 2);
  // A configuration means a plan: data parallelism, of whole models, whose two ranks exchange all.
  write_file_atomically(folder_ / "profile.json",
                        R"({"model": "resnet20", )" + std::string(kProfile + 1));
  const std::string three = "--trainer.accumulate_grad_batches=3 ";
  const auto data =
      simulated(three + "--data.global_batch_size=8 --trainer.devices=1 --trainer.num_nodes=2");
  EXPECT_EQ(data["mesh"], "data=2");
  EXPECT_EQ(data["step_seconds"], 3 * 6 + 0.5 + 8);
  EXPECT_EQ(data["samples_per_second"], 24 / 26.5);
  EXPECT_EQ(data["fits"], true);
  // A run of these options would have other micro-batches or devices.
  const std::string files = "--profile profile.json --cluster cluster.toml " + three;
  EXPECT_THAT(refused(files),
              HasSubstr("[simulate] data.batch_size; got 32, expected 4, since profile.json has "
                        "micro-batches of 4 samples on each of 2 replicas"));
  EXPECT_THAT(refused(files + "--data.global_batch_size=7"),
              HasSubstr("[simulate] data.global_batch_size; got 7, expected 8, since "));
  EXPECT_THAT(refused(files + "--data.batch_size=4 --trainer.devices=2"),
              HasSubstr("[simulate] trainer.devices; got 2, expected 1, the devices of host x of "
                        "cluster.toml"));
  EXPECT_THAT(refused(files + "--data.batch_size=4 --trainer.num_nodes=1"),
              HasSubstr("[simulate] trainer.num_nodes; got 1, expected 2, the hosts with devices"));
}

TEST_F(SimulateCluster, SaysWhatDoesNotFit) {
  write_file_atomically(
      folder_ / "cluster.toml",
      "[[devices]]\nhost = \"x\"\nmemory_bytes = 4096\n[[devices]]\nhost = \"y\"\n"
      "memory_bytes = 1000\n");
  const std::string files = "--plan plan.toml --profile profile.json --cluster cluster.toml ";
  const auto outcome = troika(files + "--json out.json");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("\ndoes not fit: rank 1 needs "));
  EXPECT_EQ(nlohmann::json::parse(read_file(folder_ / "out.json"))["fits"], false);
  EXPECT_EQ(simulated("--plan plan.toml --sweep devices=2")["devices"][0]["fits"], false);
}

// Exchanges with servers that have no barrier. A rank computes for 6 s a step.
TEST_F(SimulateCluster, SimulatesServersWithoutABarrier) {
  const auto plan = [&](const std::string& method, const std::string& consistency) {
    write_file_atomically(folder_ / "plan.toml",
                          "[mesh]\naxes = \"data=2\"\n[exchange]\nmethod = \"" + method +
                              "\"\n[servers]\nconsistency = \"" + consistency + "\"\n");
  };
  plan("downpour_sgd", "eventual");
  const auto downpour = simulated("--plan plan.toml --slow 1,2 --trace trace.json");
  EXPECT_EQ(downpour["seconds_by_step"].size(), 20u);
  // A fetch waits for the push before it: 4 s and 0.5 s of latency, and again, which the fast rank
  // waits for. Where both ranks use a link, it takes 4 s more.
  EXPECT_LT(downpour["samples_per_second"], 4 / 9.0 + 4 / 12.0);
  EXPECT_GT(downpour["samples_per_second"], 4 / 13.0 + 4 / 16.0);
  EXPECT_GE(downpour["staleness"]["most"], 1);
  EXPECT_THAT(read_file(folder_ / "trace.json"), HasSubstr("\"fetch\""));
  EXPECT_EQ(simulated("--plan plan.toml --sweep devices=1,2")["devices"].size(), 2u);
  EXPECT_THAT(refused("--plan plan.toml --profile profile.json --cluster cluster.toml --samples 9"),
              HasSubstr("[simulate] --samples; got a plan of strategy plan, expected one of "));
  plan("sandblaster_lbfgs", "sequential");
  const auto batch =
      simulated("--plan plan.toml --steps 3 --evaluations 2 --samples 64 --optimizer-rate 1e9");
  EXPECT_EQ(batch["batch"]["passes"], 6);
  EXPECT_EQ(batch["batch"]["portions"], 6 * 8);
  EXPECT_GT(batch["step_seconds"], 2 * 8 * 6);
  EXPECT_EQ(batch["samples_per_second"], 64 / batch["step_seconds"].get<double>());
}

TEST_F(SimulateCluster, SimulatesFailures) {
  const auto goodput = simulated(
      "--plan plan.toml --mean-between-failures 3600 --checkpoint-interval 600 "
      "--checkpoint-seconds 10 --restart-seconds 60 --seed 4")["goodput"];
  EXPECT_EQ(goodput["steps_between_checkpoints"], 50);
  EXPECT_NEAR(goodput["share"].get<double>() / goodput["expected_share"].get<double>(), 1, 0.01);
}

TEST_F(SimulateCluster, Sweeps) {
  const auto devices = simulated("--plan plan.toml --sweep devices=1,2,5")["devices"];
  ASSERT_EQ(devices.size(), 3u);
  EXPECT_EQ(devices[0]["step_seconds"], 12);
  EXPECT_EQ(devices[2]["mesh"], "pipeline=2 data=2");
  EXPECT_EQ(devices[2]["idle_devices"], 1);
  const auto batches = simulated("--plan plan.toml --sweep micro_batches=1..16");
  EXPECT_EQ(batches["micro_batches"].size(), 4u);  // of eight samples
  EXPECT_EQ(batches["micro_batches"][1]["step_seconds"], 12);
}

TEST_F(SimulateCluster, RefusesWithFileAndField) {
  const std::string files = "--plan plan.toml --profile profile.json --cluster cluster.toml ";
  auto profile = nlohmann::json::parse(kProfile);
  profile["blocks"][1]["forward_seconds"] = -1;
  write_file_atomically(folder_ / "bad.json", profile.dump(1));
  EXPECT_THAT(refused("--plan plan.toml --profile bad.json --cluster cluster.toml"),
              HasSubstr("blocks[1].forward_seconds (bad.json:"));
  write_file_atomically(folder_ / "bad.toml", "[[devices]]\nhost = \"x\"\ncount = -1\n");
  EXPECT_THAT(refused("--plan plan.toml --profile profile.json --cluster bad.toml"),
              HasSubstr("devices.count (bad.toml:3); got -1"));
  write_file_atomically(folder_ / "three.toml",
                        "[mesh]\naxes = \"pipeline=3\"\n[schedule]\n"
                        "name = \"1f1b\"\nmicro_batches = 2\n");
  EXPECT_THAT(refused("--plan three.toml --profile profile.json --cluster cluster.toml"),
              HasSubstr("[plan] blocks of the profile; got 2, expected at least 3"));
  write_file_atomically(folder_ / "four.toml",
                        "[mesh]\naxes = \"pipeline=2 data=2\"\n[schedule]\n"
                        "name = \"1f1b\"\nmicro_batches = 2\n");
  EXPECT_THAT(
      refused("--plan four.toml --profile profile.json --cluster cluster.toml"),
      HasSubstr("[plan] devices of the cluster; got 2, expected at least 4, the ranks of mesh "
                "pipeline=2 data=2 (four.toml:2)"));
  write_file_atomically(folder_ / "cut.toml",
                        read_file(folder_ / "plan.toml") + "[stages]\ncut = \"a|c\"\n");
  EXPECT_THAT(refused("--plan cut.toml --profile profile.json --cluster cluster.toml"),
              HasSubstr("the cut `a|c` (cut.toml:7) has a name that is not the next block's"));
  EXPECT_THAT(refused("--plan plan.toml --profile . --cluster cluster.toml"),
              HasSubstr("cannot read .; got Is a directory"));
  EXPECT_THAT(refused(files + "--slow 2,2"), HasSubstr("[plan] a slow rank; got rank 2 by 2"));
  EXPECT_THAT(refused(files + "--slow 1,2 --slow 1,3"), HasSubstr("expected each rank once"));
  EXPECT_THAT(refused(files + "--stragglers 0.5 inf"), HasSubstr("[simulate] --stragglers; got "));
  EXPECT_THAT(refused(files + "--stragglers nan 2"), HasSubstr("[simulate] --stragglers; got "));
  EXPECT_THAT(refused(files + "--jitter nan"),
              HasSubstr("[simulate] --jitter; got nan, expected from"));
  EXPECT_THAT(refused(files + "--mean-between-failures nan"),
              HasSubstr("[simulate] --mean-between-failures; got nan, expected from"));
  EXPECT_THAT(refused(files + "--slow 2"),
              HasSubstr("[simulate] --slow; got 2, expected RANK,FAC"));
  EXPECT_THAT(refused(files + "--sweep hosts=1..2"), HasSubstr("[plan] --sweep; got hosts=1..2"));
  EXPECT_THAT(refused(files + "--trainer.devices=2"), HasSubstr("expected none beside --plan"));
  EXPECT_THAT(refused(files + "--schedule gpipe"), HasSubstr("excludes"));
  EXPECT_THAT(refused("--plan plan.toml --profile profile.json"),
              HasSubstr("[simulate] --cluster; got none"));
  EXPECT_THAT(refused("--profile profile.json --cluster cluster.toml"),
              HasSubstr("[simulate] --plan; got none"));
  EXPECT_THAT(refused(""), HasSubstr("[simulate] --schedule; got none"));
  EXPECT_THAT(refused("run.toml --schedule gpipe --stages 2 --micro-batches 2"),
              HasSubstr("[simulate] an argument; got run.toml, expected none beside --schedule"));
  write_file_atomically(folder_ / "gpt.json", R"({"model": "gpt", )" + std::string(kProfile + 1));
  EXPECT_THAT(
      refused("--profile gpt.json --cluster cluster.toml --model.name=mlp"),
      HasSubstr("[simulate] --profile; got gpt.json, of gpt, expected a profile of mlp, the "
                "configured model"));
  // A profile without a name is compared by its blocks and parameters.
  const std::string unnamed = "--profile profile.json --cluster cluster.toml --model.name=mlp ";
  EXPECT_THAT(refused(unnamed), HasSubstr("[simulate] --profile; got profile.json, of 2 blocks, "
                                          "expected 3, those of mlp, the configured model"));
  EXPECT_THAT(refused(unnamed + "--model.hidden_layers=1"),
              HasSubstr("got profile.json, of another number of parameters, expected "));
  for (auto& block : profile["blocks"]) block["parameter_bytes"] = 4 * (3072 + 1 + 10 + 10) / 2;
  profile["blocks"][1]["forward_seconds"] = 1;
  write_file_atomically(folder_ / "profile.json", profile.dump(1));
  const auto same =
      troika(unnamed + "--model.hidden_layers=1 --model.hidden_width=1 --data.batch_size=4");
  EXPECT_EQ(same.exit_code, 0) << same.err;
}

}  // namespace
}  // namespace troika
