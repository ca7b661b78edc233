#include "troika/layout/plan.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "troika/layout/schedules/table.h"

namespace troika::layout {
namespace {

using testing::HasSubstr;

Plan unusual_plan() {
  return {.strategy = "own",
          .mesh = Mesh::parse("pipeline=2 data=4"),
          .threads = 2,
          .stages = {.cut = "stem|head",
                     .parameters = 123,
                     .sequence_parallel = true,
                     .tensor_overlap = true,
                     .context_method = "all_to_all"},
          .schedule = "custom",
          .chunks = 2,
          .actions = "0F0 0B0\n1F0 1B0\n",
          .micro_batches = 3,
          .without_flushes = {.in_flight = 2, .warm_up = "noam", .steps_by_replicas = true},
          .sums_micro_batches = true,
          .exchange = {.method = ExchangeMethod::zero,
                       .bucket_bytes = 12345,
                       .first_bucket_bytes = 17,
                       .find_unused_parameters = true,
                       .static_graph = true,
                       .broadcast_buffers = false,
                       .zero_stage = 2,
                       .zero_group = 2,
                       .period = 8,
                       .warmup_steps = 9,
                       .outer = {.is_on = true,
                                 .lr = 0.1,
                                 .momentum = 0.3,
                                 .fragments = 2,
                                 .delay = 3,
                                 .mixing = 0.25,
                                 .codec = "int8"},
                       .servers = {.consistency = "bounded",
                                   .delay = 3,
                                   .count = 5,
                                   .replicas = 1,
                                   .push_filters = "half, zlib",
                                   .pull_filters = "zlib",
                                   .limit_seconds = 2.5},
                       .downpour = {.n_fetch = 2,
                                    .n_push = 3,
                                    .local_rate = 0.25,
                                    .overlap = false,
                                    .warm_start_steps = 4},
                       .sandblaster = {.history = 3,
                                       .tolerance = 0.25,
                                       .portions = 7,
                                       .backups = 2,
                                       .penalty = 0.5,
                                       .decrease = 0.125,
                                       .curvature = 0.75,
                                       .most_evaluations = 9},
                       .summation = {.partition_bytes = 640,
                                     .credit_bytes = 5,
                                     .priorities = false,
                                     .links = "1, 2",
                                     .cross_barrier = true,
                                     .asynchronous = true,
                                     .local_sums = "bf16",
                                     .momentum = 0.5,
                                     .dither_norm = "l2"}},
          .compression = {.codec = "topk",
                          .error_feedback = false,
                          .powersgd_rank = 2,
                          .powersgd_start_step = 3,
                          .powersgd_warm_start = false,
                          .topk_density = 0.125,
                          .int8_block = 4},
          .precision = "bf16-mixed",
          .recompute = "budget:6GiB",
          .offload = {.activations = "/a \"folder\"", .optimizer = "b"}};
}

TEST(Plan, TextRoundTrips) {
  for (const auto& plan : {Plan(), unusual_plan()}) {
    EXPECT_EQ(Plan::parse(plan.text(), "plan.toml"), plan) << plan.text();
  }
  EXPECT_EQ(Plan::parse("", "plan.toml"), Plan()) << "missing keys have their defaults";
}

// A member that the table lacked would have its default again.
TEST(Plan, TextHasEveryMember) {
  const auto text = unusual_plan().text();
  const auto defaults = Plan().text();
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = text.find('\n', begin);
    const auto line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty() || line.front() == '[') continue;
    EXPECT_EQ(defaults.find(line), std::string::npos) << line;
  }
}

TEST(Plan, TakesTheRestOfTheWorld) {
  const auto plan = Plan::parse("[mesh]\naxes = \"data=-1\"\n", "p", 6);
  EXPECT_EQ(plan.mesh.text(), "data=6");
}

TEST(Plan, ErrorsNameKeyLineAndValue) {
  const auto refused = [](const std::string& text, int world = 0) {
    try {
      Plan::parse(text, "plan.toml", world);
    } catch (const Error& problem) {
      return std::string(problem.what());
    }
    return text + " was taken";
  };
  EXPECT_THAT(refused("[exchange]\nmethod = \"zero\"\nzero_stages = 2\n"),
              HasSubstr("unknown key exchange.zero_stages (plan.toml:3) (did you mean "
                        "exchange.zero_stage?)"));
  EXPECT_THAT(refused("[exchange]\nmethod = \"allreduce\"\n"),
              HasSubstr("exchange.method (plan.toml:2); got \"allreduce\", expected"));
  EXPECT_THAT(refused("[exchange]\nmethod = \"allreduce\"\n"),
              HasSubstr("did you mean all_reduce?"));
  EXPECT_THAT(refused("[exchange]\nzero_stage = 4\n"),
              HasSubstr("exchange.zero_stage (plan.toml:2); got 4, expected"));
  EXPECT_THAT(refused("[exchange]\nbucket_bytes = \"25\"\n"),
              HasSubstr("exchange.bucket_bytes (plan.toml:2); got '25', expected an integer"));
  EXPECT_THAT(refused("[mesh]\naxes = \"data=2 tensr=2\"\n"),
              AllOf(HasSubstr("mesh `data=2 tensr=2` (plan.toml:2); got axis tensr, expected"),
                    HasSubstr("did you mean tensor?")));
  EXPECT_THAT(refused("[mesh]\naxes = \"tensor=3 data=-1\"\n", 4),
              HasSubstr("mesh `tensor=3 data=-1` (plan.toml:2); got 4 ranks for data = -1, "
                        "expected a multiple of 3, the ranks of the other axes"));
  EXPECT_THAT(refused("[schedule]\nmicro_batches = 100000000\n"),
              HasSubstr("schedule.micro_batches (plan.toml:2); got 100000000, expected"));
  EXPECT_THAT(refused("[schedule]\nname = \"1f1\"\n"),
              HasSubstr("schedule.name (plan.toml:2); got \"1f1\", expected one of one_stage, "));
}

TEST(Plan, PartsAgree) {
  const auto refused = [](Plan plan) {
    try {
      plan.verify();
    } catch (const Error& problem) {
      return std::string(problem.what());
    }
    return std::string("none");
  };
  const Mesh mesh(Axis::data, 6);
  const auto zero = ExchangeMethod::zero;
  EXPECT_EQ(refused({.mesh = mesh, .exchange = {.method = zero, .zero_stage = 3, .zero_group = 3}}),
            "none");
  EXPECT_EQ(refused({.mesh = mesh, .exchange = {.method = zero, .zero_stage = 3, .zero_group = 4}}),
            "[layout] groups of ranks that shard a model; got 4 ranks in each, expected a "
            "divisor of 6, "
            "the ranks of the data axis");
  EXPECT_EQ(refused({.mesh = mesh, .exchange = {.method = zero}}),
            "[layout] exchange.zero_stage of exchange.method zero; got 0, expected 1, 2 or 3");
  EXPECT_EQ(refused({.mesh = mesh, .exchange = {.zero_stage = 1}}),
            "[layout] exchange.zero_stage of exchange.method all_reduce; got 1, expected 0");
  EXPECT_EQ(refused({.mesh = mesh, .exchange = {.zero_group = 2}}),
            "[layout] exchange.zero_group of exchange.method all_reduce; got 2, expected 0");
  EXPECT_EQ(refused({.threads = 1, .exchange = {.method = ExchangeMethod::local_steps}}),
            "[layout] mesh.threads; got 1 with local_steps, expected 0, or exchange.method "
            "all_reduce");
  EXPECT_EQ(
      refused({.mesh = mesh, .stages = {.sequence_parallel = true}}),
      "[layout] mesh.sequence_parallel of mesh.axes data=6; got true, expected a tensor axis, "
      "or false");
  EXPECT_EQ(
      refused({.mesh = Mesh::parse("data=2 tensor=1"), .stages = {.sequence_parallel = true}}),
      "none");
  const ModelStages overlapped{.tensor_overlap = true};
  const auto cut = Mesh::parse("data=2 tensor=2");
  EXPECT_EQ(refused({.mesh = cut, .stages = overlapped, .micro_batches = 2}), "none");
  EXPECT_EQ(refused({.mesh = mesh, .stages = overlapped, .micro_batches = 2}),
            "[layout] mesh.tensor_overlap of mesh.axes data=6; got true, expected a tensor axis of "
            "2 or more ranks, or false");
  EXPECT_EQ(refused({.mesh = cut, .stages = overlapped}),
            "[layout] mesh.tensor_overlap of 1 micro-batch a step; got true, expected 2 or more: "
            "trainer.accumulate_grad_batches or pipeline.micro_batches, or false");
  EXPECT_EQ(refused({.mesh = cut, .stages = overlapped, .schedule = "gpipe", .micro_batches = 2}),
            "none");
  const auto staged = Mesh::parse("pipeline=2 tensor=2");
  EXPECT_EQ(
      refused({.mesh = staged, .stages = overlapped, .schedule = "pipedream", .micro_batches = 4}),
      "[layout] mesh.tensor_overlap of schedule.name pipedream; got true, expected a schedule with "
      "flushes, as 1f1b, or false");
  EXPECT_EQ(
      refused(
          {.mesh = staged, .stages = overlapped, .schedule = "interleaved", .micro_batches = 2}),
      "[layout] schedule interleaved on 2 ranks with mesh.tensor_overlap; got 2 micro-batches, "
      "expected a number of pairs that is a multiple of the ranks");
  EXPECT_EQ(
      refused(
          {.mesh = Mesh::parse("tensor=2 context=2"), .stages = overlapped, .micro_batches = 2}),
      "[layout] mesh.tensor_overlap of mesh.axes tensor=2 context=2; got true, expected no "
      "context axis, or false");
  EXPECT_EQ(refused({.mesh = cut,
                     .stages = overlapped,
                     .micro_batches = 2,
                     .offload = {.activations = "host"}}),
            "[layout] mesh.tensor_overlap of memory.offload_activations host; got true, expected "
            "no offload, or false");
  EXPECT_EQ(refused({.mesh = mesh, .stages = {.context_method = "all_to_all"}}),
            "[layout] mesh.context_method of mesh.axes data=6; got all_to_all, expected a context "
            "axis, or ring");
  const auto served = [&](const ServerExchange& servers) {
    return refused(
        {.mesh = mesh, .exchange = {.method = ExchangeMethod::servers, .servers = servers}});
  };
  EXPECT_EQ(served({.replicas = 5}), "none");
  EXPECT_EQ(served({.replicas = 6}),
            "[layout] servers.replicas; got 6, expected fewer than the 6 servers");
  EXPECT_EQ(served({.consistency = "bounded", .delay = 2, .count = 1}), "none");
  EXPECT_EQ(served({.delay = 2}),
            "[layout] servers.delay of servers.consistency sequential; got 2, expected 0, or "
            "servers.consistency bounded");
  const auto downpour = [&](const ServerExchange& servers) {
    return refused(
        {.mesh = mesh, .exchange = {.method = ExchangeMethod::downpour, .servers = servers}});
  };
  EXPECT_EQ(downpour({.consistency = "eventual", .replicas = 5}), "none");
  EXPECT_EQ(downpour({.consistency = "eventual", .replicas = 6}),
            "[layout] servers.replicas; got 6, expected fewer than the 6 servers");
  EXPECT_EQ(
      downpour({}),
      "[layout] servers.consistency of exchange.method downpour_sgd; got sequential, expected "
      "eventual: replicas do not wait for each other");
  EXPECT_EQ(refused({.mesh = mesh, .exchange = {.downpour = {.n_push = 2}}}),
            "[layout] values of downpour; got exchange.method all_reduce, expected "
            "exchange.method downpour_sgd");
  EXPECT_EQ(refused({.mesh = mesh, .exchange = {.sandblaster = {.history = 2}}}),
            "[layout] values of sandblaster; got exchange.method all_reduce, expected "
            "exchange.method sandblaster_lbfgs");
}

TEST(Plan, HasAScheduleOfItsPipeline) {
  const auto refused = [](Plan plan) {
    try {
      plan.verify();
    } catch (const Error& problem) {
      return std::string(problem.what());
    }
    return std::string("none");
  };
  const Plan plan{.mesh = Mesh::parse("pipeline=2 data=3"), .schedule = "1f1b", .micro_batches = 2};
  EXPECT_EQ(schedule_of(plan), make_schedule("1f1b", {.ranks = 2, .micro_batches = 2}));
  EXPECT_THAT(explain(plan), HasSubstr("\nactions    0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 "
                                       "0RECV_B1 0B1 0REDUCE 0STEP\n"
                                       "           1RECV_F0 1F0 "));
  auto sharing = plan;
  sharing.exchange = {.method = ExchangeMethod::zero, .zero_stage = 3};
  EXPECT_THAT(schedule_of(sharing).text(), testing::StartsWith("0GATHER 0F0 "));
  auto interleaved = plan;
  interleaved.schedule = "interleaved";
  interleaved.chunks = 3;
  EXPECT_EQ(schedule_of(interleaved),
            make_schedule("interleaved", {.ranks = 2, .micro_batches = 2, .chunks = 3}));
  interleaved.micro_batches = 3;
  EXPECT_EQ(refused(interleaved),
            "[layout] schedule interleaved on 2 ranks; got 3 micro-batches, expected a multiple of "
            "the ranks");
  auto custom = plan;
  custom.schedule = kCustomSchedule;
  EXPECT_EQ(refused(custom),
            "[layout] schedule.actions of schedule.name custom; got none, expected a line of "
            "actions for each rank");
  custom.actions = "0F0 0F1 0B1 0B0\n1F0 1F1 1B1 1B0\n";
  EXPECT_EQ(refused(custom), "none");
  EXPECT_EQ(schedule_of(custom), make_schedule("gpipe", {.ranks = 2, .micro_batches = 2}));
  custom.micro_batches = 3;
  EXPECT_EQ(
      refused(custom),
      "[layout] schedule.actions; got 2 ranks and 2 micro-batches, expected the plan's: 2 and "
      "3");
  EXPECT_ERROR(schedule_of({.micro_batches = 1'000'001}), ErrorKind::usage,
               "[layout] micro-batches of one_stage; got 1000001, expected at most 1000000");
  EXPECT_EQ(refused({.chunks = 2}),
            "[layout] schedule.chunks of schedule.name one_stage; got 2, expected 0");
}

TEST(Plan, SaysWhatItHolds) {
  const Mesh mesh(Axis::data, 6);
  const Plan reduces{.mesh = mesh}, averages{.exchange = {.method = ExchangeMethod::local_steps}};
  const Plan shares{.mesh = mesh, .exchange = {.method = ExchangeMethod::zero, .zero_stage = 1}};
  EXPECT_TRUE(reduces.holds_all_states() && reduces.keeps_replicas_equal());
  EXPECT_TRUE(!shares.holds_all_states() && shares.keeps_replicas_equal());
  EXPECT_TRUE(!averages.holds_all_states() && !averages.keeps_replicas_equal());
  const Plan served{.exchange = {.method = ExchangeMethod::servers}};
  EXPECT_TRUE(!served.holds_all_states() && !served.keeps_replicas_equal());
  const Plan sums{.mesh = mesh, .exchange = {.method = ExchangeMethod::summation}};
  EXPECT_TRUE(sums.holds_all_states() && sums.keeps_replicas_equal() && !sums.has_servers());
  EXPECT_EQ(reduces.sharing_ranks(), 1);
  EXPECT_EQ(shares.sharing_ranks(), 6);
}

TEST(Plan, IsExplained) {
  EXPECT_EQ(explain({.strategy = "zero2",
                     .mesh = Mesh(Axis::data, 4),
                     .micro_batches = 2,
                     .exchange = {.method = ExchangeMethod::zero, .zero_stage = 2},
                     .precision = "bf16-mixed",
                     .recompute = "full"}),
            "strategy   zero2\n"
            "mesh       4 ranks: data=4\n"
            "stages     one: each replica runs the whole model\n"
            "schedule   one_stage, 2 micro-batches a step, averaged\n"
            "actions    0F0 0B0 0F1 0B1 0REDUCE 0STEP\n"
            "exchange   each step averages gradients; ZeRO stage 2 shards optimizer states and "
            "gradients over 4 ranks\n"
            "memory     precision bf16-mixed, recomputation full\n");
  EXPECT_THAT(explain({}), HasSubstr("one replica: nothing is exchanged"));
  EXPECT_THAT(
      explain({.mesh = Mesh::parse("tensor=2"), .stages = {.sequence_parallel = true}}),
      HasSubstr("layers     cut over the 2 ranks of each tensor axis, as tokens between them\n"));
  EXPECT_THAT(
      explain({.mesh = Mesh::parse("tensor=2"),
               .stages = {.tensor_overlap = true},
               .micro_batches = 3}),
      testing::AllOf(HasSubstr("each tensor axis; collectives of a forward pass beside that "
                               "of another micro-batch\n"),
                     HasSubstr("actions    0F0 0F1 0B0 0B1 0F2 0B2 0REDUCE 0STEP\n")));
  const auto cut = explain({.mesh = Mesh::parse("context=2")});
  EXPECT_THAT(cut,
              HasSubstr("samples    cut by tokens over the 2 ranks of each context axis, ring\n"));
  EXPECT_THAT(cut, HasSubstr("each step averages gradients by all-reduce"));
  EXPECT_THAT(explain({.exchange = {.method = ExchangeMethod::local_steps,
                                    .period = 5,
                                    .warmup_steps = 7,
                                    .outer = {.is_on = true}}}),
              HasSubstr("every 5 steps, by an outer SGD of rate 0.7 and momentum 0.9; the first 7 "
                        "steps average gradients"));
  // Rounds of a swarm have no fixed number of steps, which fragments and delays would have to fit.
  Plan rounds{.exchange = {.method = ExchangeMethod::collaborative,
                           .outer = {.is_on = true, .fragments = 2, .delay = 3}}};
  EXPECT_NO_THROW(rounds.verify());
  EXPECT_THAT(explain(rounds),
              HasSubstr("the peers of a swarm step by themselves and average parameters in rounds, "
                        "by an outer SGD of rate 0.7 and momentum 0.9, in 2 fragments, 3 steps "
                        "after they were sent"));
  rounds.exchange.outer.is_on = false;
  EXPECT_THROW(rounds.verify(), Error);
  EXPECT_THAT(
      explain({.exchange = {.method = ExchangeMethod::servers,
                            .servers = {.consistency = "bounded", .delay = 2, .count = 3}}}),
      HasSubstr("exchange   3 servers step the parameters with the ranks' gradients; consistency "
                "bounded, delay 2\n"));
  EXPECT_THAT(
      explain({.exchange = {.method = ExchangeMethod::downpour,
                            .servers = {.consistency = "eventual", .count = 3, .replicas = 2},
                            .downpour = {.n_fetch = 2, .warm_start_steps = 9}}}),
      HasSubstr("exchange   replicas push gradients every 1 and fetch parameters every 2 "
                "steps; replica 0 makes 9 steps alone; copies on 2 servers\n"));
  EXPECT_THAT(explain({.exchange = {.method = ExchangeMethod::fault_tolerant}}),
              HasSubstr("each step averages the gradients of the replicas that are there\n"));
  EXPECT_THAT(
      explain({.exchange = {.method = ExchangeMethod::summation, .servers = {.count = 2}}}),
      HasSubstr("exchange   each step averages gradients by summation servers, one in each process "
                "and 2 beside them; every replica holds all parameters and states\n"));
}

}  // namespace
}  // namespace troika::layout
