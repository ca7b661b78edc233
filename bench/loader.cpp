// Measures how fast the loader alone makes training batches like those of CIFAR-10: 50 000 images,
// crop and mirror, batches of 128. Prints a record (troika/base/benchmark_record.h) of the rates of
// epochs; `workers` is the only argument (default 1).
//
// The target: ten times as many samples per second as ResNet-18 trains on one CPU core, which is 30
// to 60.
#include <fmt/format.h>

#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "troika/base/benchmark_record.h"
#include "troika/base/clock.h"
#include "troika/base/random.h"
#include "troika/compat/torch.h"
#include "troika/data/cifar.h"
#include "troika/data/loader.h"
#include "troika/data/sampler.h"

namespace {

troika::data::Images random_images(int64_t count) {
  troika::data::Images images{.shape = {3, 32, 32}, .classes = 10};
  troika::Random random(1);
  images.labels.assign(static_cast<size_t>(count), 0);
  images.pixels.resize(static_cast<size_t>(count * images.shape.bytes()));
  for (auto& pixel : images.pixels) pixel = static_cast<uint8_t>(random());
  return images;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace troika::data;
  constexpr int64_t kBatch = 128;
  constexpr double kSeconds = 3;
  constexpr double kResNet18PerCore = 60;
  const int workers = argc > 1 ? std::atoi(argv[1]) : 1;

  const ImageDataset dataset(random_images(50'000), cifar10_normalisation(), kCifarAugmentation);
  const Sampler sampler({.size = dataset.size(), .global_batch = kBatch, .seed = 0});
  std::vector<double> rates;
  const troika::Stopwatch watch;
  for (int64_t epoch = 0; watch.seconds() < kSeconds; ++epoch) {
    const troika::Stopwatch epoch_watch;
    int64_t samples = 0;
    Loader loader(dataset, sampler.batches({.epoch = epoch, .position = 0}),
                  sampler.augmentation_seed(epoch), {.workers = workers});
    while (const auto batch = loader.next()) samples += batch->size();
    rates.push_back(static_cast<double>(samples) / epoch_watch.seconds());
  }
  const auto rate = troika::spread_of(rates);
  troika::BenchmarkRecord record("loader", {{"libtorch", troika::compat::torch_version()}});
  record.add(fmt::format("{} workers", workers), "samples/s", troika::Better::higher, rate,
             {{"batch", kBatch}, {"times_resnet18_on_one_core", rate.median / kResNet18PerCore}});
  std::cout << record.to_json();
}
