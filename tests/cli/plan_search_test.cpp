// `troika plan --profile`.
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tests/support/subprocess.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"

namespace troika {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Three layers, of which the last one has most parameters.
constexpr const char* kSearchedGraph =
    "node1 -- Input -- forward_compute_time=7.000, backward_compute_time=0.000, "
    "activation_size=602112.0, parameter_size=0.000\n"
    "node2 -- Conv -- forward_compute_time=200.000, backward_compute_time=400.000, "
    "activation_size=1000.0, parameter_size=4000.000\n"
    "node3 -- Conv -- forward_compute_time=200.000, backward_compute_time=400.000, "
    "activation_size=1000.0, parameter_size=4000.000\n"
    "node4 -- Linear -- forward_compute_time=100.000, backward_compute_time=200.000, "
    "activation_size=500.0, parameter_size=1000000.000\n"
    "\tnode1 -- node2\n\tnode2 -- node3\n\tnode3 -- node4\n";

class PlanSearch : public testing::Test {
 protected:
  PlanSearch() { write_file_atomically(folder_ / "graph.txt", kSearchedGraph); }
  testing_support::Outcome plan(const std::string& arguments) {
    return testing_support::run_program("cd " + folder_.path().string() + " && exec " +
                                        TROIKA_PROGRAM + " plan " + arguments);
  }
  json result() { return json::parse(read_file(folder_ / "plan.json")); }
  const TemporaryFolder folder_;
};

TEST_F(PlanSearch, WritesThePlanOfThePublishedModel) {
  const auto outcome = plan(
      "--profile graph.txt --machines 5 --bandwidth 1e6 --cost-model pipedream-sum --json "
      "plan.json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto found = result();
  EXPECT_TRUE(found["feasible"].get<bool>());
  EXPECT_TRUE(found["optimal"].get<bool>());
  // (0.6 + 4 * 4000 / (2 * 1e6)) / 2 for each of the first two layers on two machines.
  EXPECT_NEAR(found["seconds_per_minibatch"].get<double>(), 0.304, 1e-12);
  EXPECT_NEAR(found["data_parallel_seconds"].get<double>(), (1.5 + 4 * 4 * 1.008 / 5) / 5, 1e-12);
  EXPECT_EQ(found["stages"].dump(),
            R"([{"nodes":["node1","node2"],"replicas":2},{"nodes":["node3"],"replicas":2},)"
            R"({"nodes":["node4"],"replicas":1}])");
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("0.304 s for each minibatch, the least"),
                                 HasSubstr("replicas     2-2-1\n")));
  // The same levels by a cluster.
  write_file_atomically(folder_ / "cluster.toml",
                        "[links.network]\nbandwidth = 1e6\n[[devices]]\nhost = \"a\"\n"
                        "[[devices]]\nhost = \"b\"\n[[devices]]\nhost = \"c\"\n"
                        "[[devices]]\nhost = \"d\"\n[[devices]]\nhost = \"e\"\n");
  const auto by_cluster =
      plan("--profile graph.txt --cluster cluster.toml --cost-model pipedream-sum");
  EXPECT_THAT(by_cluster.out,
              HasSubstr("cluster.toml: its numbers of devices and bandwidths alone"));
  const auto end_of = [](const std::string& text) { return text.substr(text.find("\ntime")); };
  EXPECT_EQ(end_of(by_cluster.out), end_of(outcome.out)) << by_cluster.err;
}

TEST_F(PlanSearch, TakesTheOptionsOfTheReleasedOptimizer) {
  const std::string three =
      "--profile graph.txt --machines 3 --bandwidth 1e6 --json plan.json --cost-model ";
  plan(three + "pipedream-sum --straight");
  EXPECT_EQ(result()["stages"].size(), 3);
  EXPECT_NEAR(result()["seconds_per_minibatch"].get<double>(), 0.6, 1e-12);
  plan(
      "--profile graph.txt --cost-model pipedream-sum --machines 4 --bandwidth 1e6 --straight "
      "--json plan.json");
  EXPECT_FALSE(result()["feasible"].get<bool>());
  EXPECT_TRUE(result()["seconds_per_minibatch"].is_null());
  // Overlapped, the exchange of the first two layers is hidden.
  plan(three + "pipedream-max");
  EXPECT_NEAR(result()["seconds_per_minibatch"].get<double>(), 0.6, 1e-12);
  // 2 * 1000 bytes over a link of 1e3 bytes a second, compressed twice, take 1 s.
  plan(
      "--profile graph.txt --machines 2 --bandwidth 1e3 --compression-ratio 2 --straight "
      "--cost-model pipedream-max --json plan.json");
  EXPECT_NEAR(result()["seconds_per_minibatch"].get<double>(), 1.0, 1e-12);
  // One machine takes 1.5 s; two exchange 1 MB over 1e3 bytes a second.
  plan(
      "--profile graph.txt --machines 2 --bandwidth 1 --compression-ratio 1 --fewer-machines "
      "--cost-model pipedream-sum --json plan.json");
  EXPECT_NEAR(result()["seconds_per_minibatch"].get<double>(), 1.5, 1e-12);
  // The first of three stages stashes two copies of 5000 bytes.
  plan(three + "pipedream-sum --straight --memory-bytes 9999");
  EXPECT_FALSE(result()["feasible"].get<bool>());
  EXPECT_EQ(result()["nearest"]["memory_bytes"].get<double>(), 10000);
  EXPECT_EQ(result()["nearest"]["stages"].size(), 3);
  plan(three + "pipedream-sum --straight --memory-bytes 10000");
  EXPECT_TRUE(result()["feasible"].get<bool>());
}

TEST_F(PlanSearch, ExplainsThePlanOfItsOwnModel) {
  const auto outcome =
      plan("--profile graph.txt --machines 2 --bandwidth 1e5 --global-batch 8 --json plan.json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(
      outcome.out,
      AllOf(HasSubstr("# savers     without a cut it fits with 32 on 1 device: 12 s a step"),
            HasSubstr("# plan       1f1b 1-1, 32: "), HasSubstr("the fastest of the model's"),
            HasSubstr("axes = \"pipeline=2 data=1\""), HasSubstr("% slower")));
  const auto found = result();
  EXPECT_TRUE(found["feasible"].get<bool>());
  EXPECT_EQ(found["plan"]["micro_batches"].get<int>(), 8);
  EXPECT_EQ(found["stages"].size(), 2);
  EXPECT_GT(found["alternatives"].size(), 4);
  EXPECT_LE(found["lower_bound"].get<double>(), found["seconds_per_minibatch"].get<double>());
  const auto none =
      plan("--profile graph.txt --machines 2 --bandwidth 1e5 --memory-bytes 5000 --json plan.json");
  EXPECT_EQ(none.exit_code, 0);
  EXPECT_THAT(none.out, AllOf(HasSubstr("# savers     nothing fits without a cut"),
                              HasSubstr("# does not fit; the nearest plan lacks ")));
  EXPECT_FALSE(result()["feasible"].get<bool>());
  EXPECT_GT(result()["nearest"]["lacking_bytes"].get<double>(), 0);
  EXPECT_NE(plan("--profile graph.txt --machines 2 --bandwidth 1 --fewer-machines").exit_code, 0);
}

// A block that fits on no device alone. Its cut over 2 of 4 devices fits.
TEST_F(PlanSearch, CutsLayersOverATensorAxis) {
  write_file_atomically(folder_ / "cut.json", R"({"micro_batch": 1, "blocks": [
    {"name": "a", "forward_seconds": 1, "backward_input_seconds": 1, "backward_weight_seconds": 1,
     "output_bytes": 100, "saved_bytes": 1000, "parameter_bytes": 4000,
     "tensor": {"units": 2, "tokens": 4, "time_share": 0.75, "token_time_share": 0.25,
                "parameter_share": 1, "saved_share": 0.5, "token_saved_share": 0.5,
                "forward_sums": 1, "backward_sums": 1, "sum_bytes": 100}}]})");
  write_file_atomically(folder_ / "cluster.toml",
                        "[links.group]\nbandwidth = 1e6\n[links.network]\nbandwidth = 1e5\n"
                        "[[devices]]\nhost = \"a\"\ncount = 2\n[[devices]]\nhost = \"b\"\n"
                        "count = 2\n");
  const std::string search =
      "--profile cut.json --cluster cluster.toml --global-batch 4 --memory-bytes 4900 --json "
      "plan.json";
  const auto outcome = plan(search);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(
      outcome.out,
      AllOf(HasSubstr("# savers     nothing fits without a cut\n"),
            HasSubstr("# tensor     2 devices compute each block together, with sequence "
                      "parallelism\n"),
            HasSubstr("# schedule   replicas       tensor                savers "),
            HasSubstr("# one stage  2              2, sequence           32 "),
            HasSubstr("axes = \"data=2 tensor=2\""), HasSubstr("sequence_parallel = true")));
  const auto found = result();
  EXPECT_EQ(found["plan"]["tensor"], 2);
  EXPECT_EQ(found["plan"]["sequence_parallel"], true);
  // Two of the four micro-batches on each pair, and the ring of 4000 / 2 bytes between hosts.
  EXPECT_NEAR(found["plan"]["seconds_per_step"].get<double>(),
              2 * (1.5 + 2 * 100 / 1e6) + 2 * 2 * 1000 / 1e5, 1e-9);
  EXPECT_EQ(found["plan"]["stages"][0]["memory_bytes"], 2 * 2000 + 500);
  // With room for the activations of two micro-batches, all but the last sum is hidden.
  const auto overlapped = plan(
      "--profile cut.json --cluster cluster.toml --global-batch 4 --memory-bytes 5000 --json "
      "plan.json");
  EXPECT_THAT(overlapped.out,
              AllOf(HasSubstr("# tensor     2 devices compute each block together, with sequence "
                              "parallelism, and sum beside another micro-batch\n"),
                    HasSubstr("# one stage  2              2, sequence, overlap  32 "),
                    HasSubstr("tensor_overlap = true")));
  EXPECT_EQ(result()["plan"]["tensor_overlap"], true);
  EXPECT_NEAR(result()["plan"]["seconds_per_step"].get<double>(),
              2 * 1.5 + (1 + 4) * 50 / 1e6 + 2 * 2 * 1000 / 1e5, 1e-9);
  EXPECT_EQ(result()["plan"]["stages"][0]["memory_bytes"], 2 * 2000 + 2 * 500);
  // The smaller of the cluster's memory and --memory-bytes counts.
  write_file_atomically(folder_ / "small.toml",
                        "[links.group]\nbandwidth = 1e6\n[[devices]]\nhost = \"a\"\ncount = 2\n"
                        "memory_bytes = 100\n");
  EXPECT_THAT(plan("--profile cut.json --cluster small.toml --memory-bytes 5000").out,
              HasSubstr("# does not fit"));
  write_file_atomically(folder_ / "no_links.toml", "[[devices]]\nhost = \"a\"\ncount = 2\n");
  EXPECT_THAT(plan("--profile cut.json --cluster no_links.toml").err,
              HasSubstr("links.group.bandwidth of no_links.toml; got none, expected bytes per "
                        "second > 0"));
  // A context axis over the devices of a host.
  auto text = nlohmann::json::parse(read_file(folder_ / "cut.json"));
  text["blocks"][0]["tensor"] = {{"units", 2}, {"time_share", 0}, {"parameter_share", 1}};
  text["blocks"][0]["context"] = {{"tokens", 8}, {"time_share", 1}, {"saved_bytes", 1000}};
  write_file_atomically(folder_ / "tokens.json", text.dump());
  const auto by_tokens = plan("--profile tokens.json --cluster cluster.toml --global-batch 2");
  EXPECT_THAT(by_tokens.out,
              AllOf(HasSubstr("# context    2 devices each compute a part of the tokens\n"),
                    HasSubstr("# schedule   replicas       tensor       context  savers "),
                    HasSubstr("axes = \"data=2 context=2\"")));
  const auto none = plan(search + " --no-tensor");
  EXPECT_EQ(none.exit_code, 0) << none.err;
  EXPECT_THAT(none.out, AllOf(HasSubstr("# does not fit"), Not(HasSubstr("# tensor"))));
  EXPECT_NE(plan("--no-tensor").exit_code, 0);
}

TEST_F(PlanSearch, RefusesWrongFilesAndArguments) {
  const auto refused = [&](const std::string& arguments) {
    const auto outcome = plan(arguments);
    EXPECT_NE(outcome.exit_code, 0) << arguments;
    return outcome.err;
  };
  EXPECT_THAT(refused("--profile graph.txt --machines 4,4 --bandwidth 1e9"),
              HasSubstr("[plan] --machines and --bandwidth; got 2 and 1 numbers"));
  EXPECT_THAT(
      refused("--profile graph.txt --cost-model pipedream-sum --machines 4 --bandwidth -1e9"),
      HasSubstr("[plan] --bandwidth; got -1e9, expected from [1 - 1e+18]"));
  EXPECT_THAT(refused("--profile graph.txt --machines 4 --bandwidth inf"),
              HasSubstr("[plan] --bandwidth; got inf, expected from [1 - 1e+18]"));
  EXPECT_THAT(
      refused("--profile graph.txt --cost-model pipedream-sum --machines 0 --bandwidth 1e9"),
      HasSubstr("[plan] machines of a level; got 0"));
  EXPECT_THAT(refused("--profile graph.txt"), HasSubstr("--machines and --bandwidth; got 0"));
  EXPECT_THAT(refused("--profile graph.txt --cluster c.toml --machines 2 --bandwidth 1 "
                      "--cost-model pipedream-sum"),
              HasSubstr("both --cluster and --machines"));
  EXPECT_THAT(refused("--profile graph.txt --cluster c.toml --bandwidth 5"),
              HasSubstr("both --cluster and --bandwidth"));
  write_file_atomically(
      folder_ / "large.toml",
      "[links.group]\nbandwidth = 1e9\n[[devices]]\nhost = \"a\"\ncount = 4097\n");
  EXPECT_THAT(refused("--profile graph.txt --cluster large.toml"),
              HasSubstr("devices.count (large.toml:5); got 4097, expected at most 4096"));
  EXPECT_THAT(refused("--profile graph.txt --machines 2 --bandwidth 1 --trainer.devices=2"),
              HasSubstr("got --trainer.devices=2"));
  EXPECT_THAT(refused("--machines 2 --bandwidth 1"), HasSubstr("--profile"));
  EXPECT_THAT(
      refused("--profile missing.txt --machines 2 --bandwidth 1 --cost-model pipedream-sum"),
      HasSubstr("missing.txt"));
  std::string text = kSearchedGraph;
  write_file_atomically(folder_ / "bad.txt", text.replace(text.find("=400.000"), 8, "=-40.000"));
  EXPECT_THAT(refused("--profile bad.txt --machines 2 --bandwidth 1 --cost-model pipedream-sum"),
              HasSubstr("backward_compute_time (bad.txt:2); got -40.000"));
}

}  // namespace
}  // namespace troika
