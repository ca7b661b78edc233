// A rank of bench/byteps_vgg: steps with the parameters of VGG-16, whose gradients summation
// servers average. Passes wait (wait_model.h).
//
// byteps_vgg_rank FORWARD_SECONDS PARTITION_BYTES CREDIT_BYTES, with the variables of torchrun.
// Takes commands on its standard input: see rank_commands.h. "barrier", "crossed" and "priorities"
// each make N steps after one to begin with, and answer with the seconds from the end of one
// backward pass to the next, "step", and those from the beginning of a step's backward pass to the
// means of the first layer's gradients, "first".
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/rank_commands.h"
#include "bench/wait_model.h"
#include "troika/base/trace.h"
#include "troika/comm/world/world.h"
#include "troika/nn/state.h"
#include "troika/optim/optimizer.h"
#include "troika/parallel/data_parallel.h"
#include "troika/parallel/servers/launched_world.h"
#include "troika/parallel/servers/summation.h"

namespace {

using namespace troika;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

// Returns the layers of VGG-16 for images of 224 x 224 (Simonyan and Zisserman 2014, D), with
// passes in proportion to their products. Each part of a backward pass waits as the forward pass.
std::shared_ptr<nn::Model> make_vgg(double forward_seconds) {
  struct Layer {
    int64_t in, out, kernel, outputs;  // outputs: of each channel
  };
  std::vector<Layer> layers;
  int64_t channels = 3, width = 224;
  for (const auto& [count, out] : {std::pair(2, 64), {2, 128}, {3, 256}, {3, 512}, {3, 512}}) {
    for (int i = 0; i < count; ++i) {
      layers.push_back({channels, out, 9, width * width});
      channels = out;
    }
    width /= 2;
  }
  layers.push_back({512 * 49, 4096, 1, 1});
  layers.push_back({4096, 4096, 1, 1});
  layers.push_back({4096, 1000, 1, 1});
  const auto products = [](const Layer& layer) {
    return static_cast<double>(layer.in * layer.out * layer.kernel * layer.outputs);
  };
  double all = 0;
  for (const auto& layer : layers) all += products(layer);
  std::vector<BlockWaits> waits;
  std::vector<int64_t> elements;
  for (const auto& layer : layers) {
    const std::chrono::duration<double> pass(forward_seconds * products(layer) / all);
    waits.push_back({pass, pass, pass});
    elements.push_back(layer.in * layer.out * layer.kernel + layer.out);
  }
  return make_wait_model(waits, elements);
}

nlohmann::json seconds_of(const comm::Group& group, double forward_seconds,
                          const layout::SummationExchange& sums, int times) {
  const auto model = make_vgg(forward_seconds);
  const auto inputs = at::zeros({1, 8});
  Trace trace;
  parallel::SummationOptions summation;
  summation.sums = sums;
  summation.trace = &trace;
  parallel::DataParallelOptions options;
  options.broadcast_buffers = false;
  options.sums = std::make_shared<parallel::SummationServers>(group, summation);
  options.crosses_barrier = sums.cross_barrier;
  // Buckets in the order in which gradients arrive, so that the first step is as the others.
  for (const auto& [name, tensor] : nn::trained_parameters(*model)) {
    options.bucket_order.insert(options.bucket_order.begin(), name);
  }
  parallel::DataParallel ddp(*model, group, options);
  const auto optimizer = optim::make_optimizer(ddp.tensors(), {.name = "sgd", .lr = 1e-4});
  std::vector<Clock::time_point> begins, ends;
  for (int step = 0; step <= times; ++step) {
    model->zero_grad(/*set_to_none=*/true);
    const auto loss = model->forward(inputs).sum();
    begins.push_back(Clock::now());
    loss.backward();
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
  if (argc != 4) return 2;
  at::set_num_threads(1);
  const double forward_seconds = number_of(argv[1]);
  layout::SummationExchange sums;
  sums.partition_bytes = static_cast<int64_t>(number_of(argv[2]));
  sums.credit_bytes = static_cast<int64_t>(number_of(argv[3]));
  const auto group = comm::world({.backend = "tcp"});
  const auto command = [&](bool crosses, bool priorities) {
    return [&, crosses, priorities](int times) {
      auto own = sums;
      own.cross_barrier = crosses;
      own.priorities = priorities;
      return seconds_of(group, forward_seconds, own, times);
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
