#include "troika/layout/profile.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/support/errors.h"

namespace troika::layout {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

constexpr const char* kProfile = R"({
  "model": "net", "parameters": 5,
  "precision": "bf16-mixed", "first_micro_batch_factor": 1.25,
  "micro_batch": 32, "batches": {"bytes": 256, "placed_bytes": 128, "prefetched": 4},
  "optimizer_factor": 2, "optimizer_bytes_per_second": 5e9, "gather_bytes_per_second": 4e9, "overlap": 0.5,
  "links": {"network": {"latency": 5e-06, "bandwidth": 1.25e+10, "spread": 0.02}},
  "blocks": [
    {"name": "stem", "forward_seconds": 0.5, "backward_input_seconds": 0.25,
     "backward_weight_seconds": 1, "spread": 0.125, "output_bytes": 64, "saved_bytes": 128,
     "parameter_bytes": 16, "workspace_bytes": 8, "fixed_bytes": 2, "borrowed_bytes": 3, "recomputed_saved_bytes": 5, "sent_workspace_bytes": 6, "weight_saved_share": 0.75, "weight_workspace_bytes": 7},
    {"name": "side", "forward_seconds": 1, "backward_input_seconds": 1,
     "backward_weight_seconds": 1, "output_bytes": 1, "saved_bytes": 1, "parameter_bytes": 0},
    {"name": "head", "layer": "Linear", "forward_seconds": 1, "backward_input_seconds": 1,
     "backward_weight_seconds": 1, "output_bytes": 1, "saved_bytes": 1, "parameter_bytes": 4
    }
  ],
  "edges": [["stem", "side"], ["stem", "head"],
            ["side", "head"]]
}
)";

constexpr const char* kGraph =
    "node2 -- Conv2d(3, 64) -- forward_compute_time=2.000, backward_compute_time=4.000, "
    "activation_size=[16.0; 8.0], parameter_size=12.000\n"
    "node3 -- Linear -- forward_compute_time=1.000, backward_compute_time=0.500, "
    "activation_size=4.0, parameter_size=8.000 -- stage_id=1\n"
    "node1 -- Input -- forward_compute_time=9.000, backward_compute_time=0.000, "
    "activation_size=602112.0, parameter_size=0.000\n"
    "\tnode1 -- node2\n"
    "\tnode2 -- node3\n";

Profile read(const std::string& text) {
  return Profile::parse(text, "p.json");
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const auto at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), by);
}

std::string error_of(const std::string& text) {
  try {
    read(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  ADD_FAILURE() << "no error for " << text;
  return {};
}

TEST(Profile, ReadsItsText) {
  const auto profile = read(kProfile);
  EXPECT_EQ(profile.model.name, "net");
  EXPECT_EQ(profile.model.parameters, 5);
  EXPECT_EQ(profile.micro_batch, 32);
  EXPECT_EQ(profile.optimizer_bytes_per_second, 5e9);
  EXPECT_EQ(profile.gather_bytes_per_second, 4e9);
  EXPECT_EQ(profile.gather_seconds(8e9), 2);
  EXPECT_EQ(profile.in_step.first_micro_batch_factor, 1.25);
  EXPECT_EQ(profile.in_step.overlap, 0.5);
  EXPECT_EQ(profile.network.link.bandwidth, 1.25e10);
  EXPECT_EQ(profile.host.link.bandwidth, 0);
  ASSERT_EQ(profile.blocks.size(), 3);
  EXPECT_EQ(profile.blocks[0].seconds(), 1.75);
  EXPECT_EQ(profile.blocks[0].workspace_bytes, 8);
  EXPECT_EQ(profile.blocks[0].in_stage.fixed_bytes, 2);
  EXPECT_EQ(profile.blocks[0].in_stage.borrowed_bytes, 3);
  EXPECT_EQ(profile.blocks[0].in_stage.recomputed_saved_bytes, 5);
  EXPECT_EQ(profile.blocks[0].in_stage.sent_workspace_bytes, 6);
  EXPECT_EQ(profile.blocks[0].in_stage.weight_saved_share, 0.75);
  EXPECT_EQ(profile.blocks[0].in_stage.weight_workspace_bytes, 7);
  EXPECT_EQ(profile.blocks[1].workspace_bytes, 0);
  EXPECT_EQ(profile.blocks[1].in_stage.fixed_bytes, 0);
  EXPECT_EQ(profile.blocks[1].in_stage.weight_saved_share, 0.5);
  EXPECT_EQ(profile.in_step.batches, (ProfiledBatches{256, 128, 4}));
  EXPECT_THAT(profile.edges, ElementsAre(Pair(0, 1), Pair(0, 2), Pair(1, 2)));
  EXPECT_EQ(read(profile.text()), profile);
  EXPECT_THAT(profile.topological_order(), ElementsAre(0, 1, 2));
}

constexpr const char* kCut =
    R"("parameter_bytes": 16, "tensor": {"units": 12, "tokens": 64, "time_share": 0.75, "parameter_share": 0.5,
     "saved_share": 0.625, "token_time_share": 0.25, "token_saved_share": 0.375,
     "cuts_output": true, "forward_sums": 2, "backward_sums": 3, "backward_gathers": 1, "sum_bytes": 64,
     "weight_share_beside_sums": 0.5, "input_share_beside_gathers": 0.125, "counted_ranks": 3,
     "of_rank": {"saved_bytes": 9, "workspace_bytes": 8, "sent_workspace_bytes": 7, "weight_saved_share": 6,
     "weight_workspace_bytes": 5, "weight_input_bytes": 4, "weight_output_bytes": 3, "weight_gradient_bytes": 2,
     "input_workspace_bytes": 1}, "of_rank_with_tokens": {"saved_bytes": 4}},)";

TEST(Profile, ReadsWhatATensorAxisCuts) {
  const auto profile = read(replaced(kProfile, R"("parameter_bytes": 16,)", kCut));
  EXPECT_EQ(profile.blocks[0].tensor, (TensorCut{.units = 12,
                                                 .tokens = 64,
                                                 .time_share = 0.75,
                                                 .parameter_share = 0.5,
                                                 .saved_share = 0.625,
                                                 .token_time_share = 0.25,
                                                 .token_saved_share = 0.375,
                                                 .cuts_output = true,
                                                 .forward_sums = 2,
                                                 .backward_sums = 3,
                                                 .backward_gathers = 1,
                                                 .sum_bytes = 64,
                                                 .weight_share_beside_sums = 0.5,
                                                 .input_share_beside_gathers = 0.125,
                                                 .counted_ranks = 3,
                                                 .of_rank = {9, 8, 7, 6, 5, 4, 3, 2, 1},
                                                 .of_rank_with_tokens = {.saved_bytes = 4}}));
  EXPECT_EQ(profile.blocks[1].tensor, std::nullopt);
  EXPECT_EQ(read(profile.text()), profile);
  const auto error_with = [](const char* key, const char* value) {
    auto text = replaced(kProfile, R"("parameter_bytes": 16,)", kCut);
    return error_of(replaced(text, key, value));
  };
  EXPECT_THAT(error_with("0.75", "0.8"),
              HasSubstr("blocks[0].tensor (p.json:10); got time_share + token_time_share 1.05, "
                        "expected at most 1"));
  EXPECT_THAT(error_with("\"units\": 12", "\"units\": 1.5"),
              HasSubstr("blocks[0].tensor.units (p.json:10); got 1.5, expected a whole number"));
  EXPECT_THAT(error_with("saved_share", "save_share"), HasSubstr("saved_share"));
  EXPECT_THAT(error_with("\"weight_share_beside_sums\": 0.5", "\"weight_share_beside_sums\": 1.5"),
              HasSubstr("weight_share_beside_sums 1.5, expected at most 1"));
  EXPECT_THAT(error_with("\"counted_ranks\": 3", "\"counted_ranks\": 1"),
              HasSubstr("got of_rank of counted_ranks 1, expected 2 ranks or more"));
  EXPECT_THAT(error_with("of_rank_with_tokens", "of_ranks"), HasSubstr("of_rank_with_tokens"));
  EXPECT_THAT(error_with("\"weight_saved_share\": 6", "\"weight_saved_share\": 6e6"),
              HasSubstr("blocks[0].tensor.of_rank.weight_saved_share (p.json:14); got 6e+06"));
}

constexpr const char* kTokens =
    R"("parameter_bytes": 16, "context": {"tokens": 64, "heads": 4, "time_share": 1, "workspace_share": 0.5,
     "saved_bytes": 32, "attention_share": 0.25, "pair_bytes": 8, "pair_gradient_bytes": 12,
     "exchanges": 4, "exchanged_bytes": 24},)";

TEST(Profile, ReadsWhatAContextAxisCuts) {
  const auto profile = read(replaced(kProfile, R"("parameter_bytes": 16,)", kTokens));
  EXPECT_EQ(profile.blocks[0].context, (ContextCut{.tokens = 64,
                                                   .heads = 4,
                                                   .time_share = 1,
                                                   .workspace_share = 0.5,
                                                   .saved_bytes = 32,
                                                   .attention_share = 0.25,
                                                   .pair_bytes = 8,
                                                   .pair_gradient_bytes = 12,
                                                   .exchanges = 4,
                                                   .exchanged_bytes = 24}));
  EXPECT_EQ(profile.blocks[1].context, std::nullopt);
  EXPECT_EQ(read(profile.text()), profile);
  const auto error_with = [](const char* key, const char* value) {
    return error_of(replaced(replaced(kProfile, R"("parameter_bytes": 16,)", kTokens), key, value));
  };
  EXPECT_THAT(error_with("\"time_share\": 1", "\"time_share\": 1.5"),
              HasSubstr("blocks[0].context (p.json:10); got time_share 1.5, expected at most 1"));
  EXPECT_THAT(error_with("\"tokens\": 64", "\"tokens\": 1.5"),
              HasSubstr("blocks[0].context.tokens (p.json:10); got 1.5, expected a whole number"));
  EXPECT_THAT(error_with("pair_bytes", "pairs"), HasSubstr("pairs"));
}

TEST(Profile, ReadsWhichBlockHasAnOutputLayer) {
  const auto with = [](const char* value) {
    return replaced(
        kProfile, R"("parameter_bytes": 4
)",
        fmt::format("\"parameter_bytes\": 4, \"has_output_layer\": {}\n", value).c_str());
  };
  const auto profile = read(with("true"));
  EXPECT_TRUE(profile.blocks[2].has_output_layer);
  EXPECT_FALSE(profile.blocks[1].has_output_layer);
  EXPECT_EQ(read(profile.text()), profile);
  EXPECT_THAT(error_of(with("1")), HasSubstr("blocks[2].has_output_layer (p.json:"));
}

TEST(Profile, WithoutEdgesIsAChain) {
  auto profile = read(kProfile);
  profile.edges.clear();
  EXPECT_EQ(read(profile.text()), profile);
  EXPECT_THAT(profile.readers(), ElementsAre(ElementsAre(1), ElementsAre(2), IsEmpty()));
}

TEST(Profile, ReadsAGraphOfPipeDream) {
  const auto profile = Profile::parse(kGraph, "graph.txt");
  ASSERT_EQ(profile.blocks.size(), 3);
  EXPECT_EQ(profile.blocks[0].name, "node2");
  EXPECT_EQ(profile.blocks[0].layer, "Conv2d(3, 64)");
  EXPECT_DOUBLE_EQ(profile.blocks[0].seconds(), 6e-3);
  EXPECT_EQ(profile.blocks[0].output_bytes, 24);
  EXPECT_EQ(profile.blocks[1].parameter_bytes, 8);
  EXPECT_EQ(profile.blocks[2].seconds() + profile.blocks[2].output_bytes, 0);
  EXPECT_THAT(profile.edges, ElementsAre(Pair(2, 0), Pair(0, 1)));
  EXPECT_THAT(profile.topological_order(), ElementsAre(2, 0, 1));
  EXPECT_EQ(read(profile.text()), profile);
}

// Its edges are indented by any blanks, and lines may end with them.
TEST(Profile, ReadsAProfileOfDapple) {
  const auto profile = Profile::parse(
      "node1 -- input_ids -- forward_compute_time=0.5, backward_compute_time=0, "
      "activation_size=9216, parameter_size=0 \n"
      "node2 -- cell_0 -- forward_compute_time=2, backward_compute_time=4, "
      "activation_size=[64; 32], parameter_size=16\n"
      "node3 -- Input -- forward_compute_time=17.0, backward_compute_time=0, "
      "activation_size=[602112; 4004], parameter_size=0\n"
      "\tnode1 -- node2\n"
      " \tnode3 -- node2\n"
      "  node3 -- node1\n",
      "cells-pbs-8.txt");
  ASSERT_EQ(profile.blocks.size(), 3);
  EXPECT_DOUBLE_EQ(profile.blocks[0].forward, 0.5e-3);
  EXPECT_EQ(profile.blocks[1].output_bytes, 96);
  EXPECT_EQ(profile.blocks[2].seconds() + profile.blocks[2].output_bytes, 0);
  EXPECT_THAT(profile.edges, ElementsAre(Pair(0, 1), Pair(2, 1), Pair(2, 0)));
  EXPECT_THAT(profile.topological_order(), ElementsAre(2, 0, 1));
}

TEST(Profile, RefusesWithTheLineAndTheField) {
  EXPECT_EQ(
      error_of(replaced(kProfile, "0.25", "-0.25")),
      "[layout] blocks[0].backward_input_seconds (p.json:8); got -0.25, expected a number >= 0");
  EXPECT_EQ(error_of(replaced(kProfile, "\"parameter_bytes\": 0", "\"parameter_bytes\": null")),
            "[layout] blocks[1].parameter_bytes (p.json:12); got null, expected a number >= 0");
  // The number ends its line.
  EXPECT_THAT(error_of(replaced(kProfile, "\"parameter_bytes\": 4", "\"parameter_bytes\": -4")),
              HasSubstr("blocks[2].parameter_bytes (p.json:14); got -4"));
  EXPECT_THAT(error_of(replaced(kProfile, "\"saved_bytes\": 128,", "")),
              HasSubstr("blocks[0].saved_bytes (p.json:8); got no such key"));
  EXPECT_THAT(error_of(replaced(kProfile, "\"spread\": 0.125", "\"sprad\": 0.125")),
              HasSubstr("blocks[0].sprad (p.json:9); got an unknown key"));
  EXPECT_THAT(error_of(replaced(kProfile, "\"spread\": 0.125", "\"name\": \"again\"")),
              HasSubstr("name (p.json:9); got the key a second time"));
  EXPECT_THAT(error_of(replaced(kProfile, "\"name\": \"side\"", "\"name\": \"stem\"")),
              HasSubstr("blocks[1].name (p.json:11); got stem"));
  EXPECT_THAT(error_of(replaced(kProfile, "[\"side\", \"head\"]", "[\"sid\", \"head\"]")),
              HasSubstr("edges[2][0] (p.json:18); got sid, expected the name of a block (did you "
                        "mean side?)"));
  EXPECT_THAT(error_of(replaced(kProfile, "[\"side\", \"head\"]", "[\"head\", \"stem\"]")),
              HasSubstr("edges (p.json:17); got a circle"));
  EXPECT_THAT(error_of(replaced(kProfile, "\"micro_batch\": 32", "\"micro_batch\": 0")),
              HasSubstr("micro_batch (p.json:4); got 0, expected a number >= 1"));
  EXPECT_EQ(error_of(replaced(kProfile, "\"overlap\": 0.5", "\"overlap\": 1.5")),
            "[layout] overlap (p.json:5); got 1.5, expected at most 1");
  EXPECT_EQ(error_of(replaced(kProfile, "\"overlap\": 0.5", "\"overlap\": -1.5")),
            "[layout] overlap (p.json:5); got -1.5, expected a number >= -1");
  EXPECT_THAT(error_of(replaced(kProfile, "\"spread\": 0.125", "\"spread\": 1e300")),
              HasSubstr("; got 1e+300, expected at most 1000"));
  EXPECT_THAT(error_of(replaced(kProfile, "\"micro_batch\": 32", "\"micro_batch\": 1e300")),
              HasSubstr("; got 1e+300, expected at most 1e+18"));
  EXPECT_THAT(error_of(replaced(kProfile, "\"bandwidth\": 1.25e+10", "\"bandwidth\": 1e-300")),
              HasSubstr("; got 1e-300, expected at least 1, or 0: not known"));
  EXPECT_EQ(
      error_of(replaced(kProfile, "\"weight_saved_share\": 0.75", "\"weight_saved_share\": 1e18")),
      "[layout] blocks[0].weight_saved_share (p.json:10); got 1e+18, expected at most 1e+06");
  EXPECT_THAT(error_of(replaced(kProfile, "bf16-mixed", "bf16-mixd")),
              AllOf(HasSubstr("precision (p.json:3); got bf16-mixd, expected one of 32, 64, "),
                    HasSubstr("did you mean bf16-mixed?")));
  for (const auto* parameters : {"2", "12", "1e18"}) {
    EXPECT_THAT(
        error_of(
            replaced(kProfile, "\"parameters\": 5", fmt::format("\"parameters\": {}", parameters))),
        AllOf(HasSubstr("parameters (p.json:2); got "),
              HasSubstr("expected a number of parameters of 20 bytes, those of the blocks")));
  }
  EXPECT_EQ(error_of(replaced(kProfile, "\"parameters\": 5", "\"parameters\": 5.5")),
            "[layout] parameters (p.json:2); got 5.5, expected a whole number");
  for (const auto* name : {"a,b", "a|b", "a*", "a(", "a b", "a\\tb"}) {
    EXPECT_THAT(
        error_of(replaced(kProfile, "\"name\": \"side\"", fmt::format("\"name\": \"{}\"", name))),
        HasSubstr("blocks[1].name (p.json:11); got a"));
  }
  EXPECT_EQ(error_of("{\n\"blocks\": [{\"name\": \"a\", \"forward_seconds\": 0, "
                     "\"backward_input_seconds\": 0, \"backward_weight_seconds\": 0, "
                     "\"output_bytes\": 1, \"saved_bytes\": 1, \"parameter_bytes\": 4}]}"),
            "[layout] blocks (p.json:2); got 0 seconds in all, expected a block that takes time");
  EXPECT_THAT(error_of("{\n\"blocks\": [}"), HasSubstr("p.json:2 is not JSON"));
  EXPECT_THAT(error_of("{\"blocks\": []}"), HasSubstr("blocks (p.json:1); got none"));
  EXPECT_THAT(error_of("{\"model\": \"a\"}"), HasSubstr("blocks (p.json:1); got no such key"));
  EXPECT_THAT(error_of(" \n"), HasSubstr("p.json:1 is empty"));
  EXPECT_EQ(error_of("{\"blocks\": " + std::string(1'000'000, '[')),
            "[layout] p.json:1; got values nested more deeply, expected at most 64 levels");
}

TEST(Profile, RefusesALineOfAGraph) {
  EXPECT_EQ(error_of(replaced(kGraph, "=0.500", "=-0.500")),
            "[layout] backward_compute_time (p.json:2); got -0.500, expected a number >= 0");
  EXPECT_THAT(error_of(replaced(kGraph, "parameter_size=12.000", "parameter_size=nan")),
              HasSubstr("parameter_size (p.json:1); got nan"));
  EXPECT_EQ(error_of(replaced(kGraph, "=0.500", "=1e308")),
            "[layout] backward_compute_time (p.json:2); got 1e308, expected at most 1e+12");
  EXPECT_EQ(error_of(replaced(kGraph, "parameter_size=12.000", "parameter_size=1e19")),
            "[layout] parameter_size (p.json:1); got 1e19, expected at most 1e+18");
  EXPECT_EQ(
      error_of(replaced(kGraph, "[16.0; 8.0]", "[7e17; 7e17]")),
      "[layout] activation_size (p.json:1); got [7e17; 7e17], expected a sum of at most 1e+18");
  for (const auto* name : {"node,2", "node|2", "no(d)e2*", "node 2"}) {
    EXPECT_EQ(error_of(replaced(kGraph, "node2 -- Conv2d", fmt::format("{} -- Conv2d", name))),
              fmt::format("[layout] a layer (p.json:1); got {}, expected a name without blanks and "
                          "without , | * ( )",
                          name));
  }
  EXPECT_EQ(error_of(replaced(kGraph, "Linear", "Lin\xff")),
            "[layout] the line (p.json:2); got bytes that are no UTF-8, expected text in UTF-8");
  EXPECT_EQ(
      error_of("node1 -- A -- forward_compute_time=0, backward_compute_time=0, "
               "activation_size=1, parameter_size=1\n"),
      "[layout] the layers (p.json:2); got 0 seconds in all, expected a layer that takes time");
  EXPECT_THAT(error_of(replaced(kGraph, ", parameter_size=12.000", "")),
              HasSubstr("node2 (p.json:1)"));
  EXPECT_THAT(error_of(replaced(kGraph, "\tnode2 -- node3", "\tnode2 -- node4")),
              HasSubstr("an edge (p.json:5); got node4"));
  EXPECT_THAT(error_of(replaced(kGraph, "\tnode2 -- node3", "\tnode2 -- node1")),
              HasSubstr("got a circle"));
  EXPECT_THAT(error_of(replaced(kGraph, "node3 -- Linear", "node2 -- Linear")),
              HasSubstr("a layer (p.json:2); got node2"));
  EXPECT_THAT(error_of("[mesh]\naxes = 1\n"), HasSubstr("a layer (p.json:1); got [mesh]"));
  EXPECT_THAT(error_of(std::string(100'000, 'x')), testing::SizeIs(testing::Lt(300u)));
}

}  // namespace
}  // namespace troika::layout
