// A rank of bench/byteps_vgg: steps of VGG-16 whose gradients summation servers average.
//
// byteps_vgg_rank BATCH PIXELS PARTITION_BYTES CREDIT_BYTES, with the variables of torchrun. Takes
// commands on its standard input: see rank_commands.h. "barrier", "crossed" and "priorities" each
// make N steps after one to begin with, and answer with the seconds from the end of one backward
// pass to the next, "step", and those from the beginning of a step's forward pass to the means of
// the first layer's gradients, "first".
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/rank_commands.h"
#include "troika/base/trace.h"
#include "troika/comm/world/world.h"
#include "troika/nn/zoo.h"
#include "troika/optim/optimizer.h"
#include "troika/parallel/data_parallel.h"
#include "troika/parallel/servers/launched_world.h"
#include "troika/parallel/servers/summation.h"

namespace {

using namespace troika;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

struct Sizes {
  int64_t batch = 0, pixels = 0;
  layout::SummationExchange sums;
};

nlohmann::json seconds_of(const comm::Group& group, const Sizes& sizes, int times) {
  torch::manual_seed(0);
  const auto model = nn::make_model(
      {.name = "vgg16", .num_classes = 1000, .image_size = static_cast<int64_t>(sizes.pixels)});
  const auto inputs = at::randn({sizes.batch, 3, sizes.pixels, sizes.pixels});
  const auto targets = at::randint(1000, {sizes.batch}, at::kLong);
  Trace trace;
  parallel::SummationOptions summation;
  summation.sums = sizes.sums;
  summation.trace = &trace;
  parallel::DataParallelOptions options;
  options.broadcast_buffers = false;
  options.sums = std::make_shared<parallel::SummationServers>(group, summation);
  options.crosses_barrier = sizes.sums.cross_barrier;
  // Buckets in the order in which gradients arrive, so that the first step is as the others.
  for (const auto& [name, tensor] : nn::trained_parameters(*model)) {
    options.bucket_order.insert(options.bucket_order.begin(), name);
  }
  parallel::DataParallel ddp(*model, group, options);
  const auto optimizer = optim::make_optimizer(ddp.tensors(), {.name = "sgd", .lr = 1e-4});
  std::vector<Clock::time_point> begins, ends;
  for (int step = 0; step <= times; ++step) {
    begins.push_back(Clock::now());
    model->zero_grad(/*set_to_none=*/true);
    torch::nn::functional::cross_entropy(model->forward(inputs), targets).backward();
    ends.push_back(Clock::now());
    ddp.finish_backward();
    ddp.step(*optimizer);
  }
  ddp.synchronize_replicas();
  group.barrier();
  const auto last = static_cast<int64_t>(ddp.bucket_count()) - 1;
  auto steps = nlohmann::json::array(), first = nlohmann::json::array();
  for (const auto& event : trace.events()) {
    if (event.name != "bucket" || event.bucket != last) continue;
    first.push_back(seconds_between(begins[first.size()], *event.end));
  }
  for (size_t step = 0; step + 1 < ends.size(); ++step) {
    steps.push_back(seconds_between(ends[step], ends[step + 1]));
  }
  return {{"step", steps}, {"first", first}};
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 5) return 2;
  at::set_num_threads(1);
  Sizes sizes{.batch = static_cast<int64_t>(number_of(argv[1])),
              .pixels = static_cast<int64_t>(number_of(argv[2])),
              .sums = {.partition_bytes = static_cast<int64_t>(number_of(argv[3])),
                       .credit_bytes = static_cast<int64_t>(number_of(argv[4]))}};
  const auto group = comm::world({.backend = "tcp"});
  const auto command = [&](bool crosses, bool priorities) {
    return [&, crosses, priorities](int times) {
      auto own = sizes;
      own.sums.cross_barrier = crosses;
      own.sums.priorities = priorities;
      return seconds_of(group, own, times);
    };
  };
  answer_commands({{"barrier", command(false, true)},
                   {"crossed", command(true, false)},
                   {"priorities", command(true, true)}});
  return 0;
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << "\n";
  return troika::exit_code(error);
}
