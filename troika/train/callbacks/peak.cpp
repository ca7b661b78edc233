#include "troika/train/callbacks/peak.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/compat/gpu.h"
#include "troika/compat/torch.h"

namespace troika::train {

namespace {

// Peak rates in TFLOPS, dense, on tensor cores if they support the type; 0: unsupported. Memory
// bandwidth in GB/s (10^9) and memory in GB, of the largest variant of this name.
struct Gpu {
  std::string_view name;  // part of the driver's name
  double float64, float32, tf32, float16, bfloat16, bandwidth, memory;
};

// A name that contains another name comes before it.
constexpr std::array kGpus{
    Gpu{"H200 NVL", 60, 60, 417.7, 835.5, 835.5, 4800, 141},
    Gpu{"H200", 67, 67, 494.7, 989.4, 989.4, 4800, 141},
    Gpu{"H100 NVL", 60, 60, 417.7, 835.5, 835.5, 3900, 94},
    Gpu{"H100 PCIe", 51, 51, 378, 756, 756, 2000, 80},
    Gpu{"H100", 67, 67, 494.7, 989.4, 989.4, 3350, 80},
    Gpu{"A100", 19.5, 19.5, 156, 312, 312, 2039, 80},
    Gpu{"A40", 0.58, 37.4, 74.8, 149.7, 149.7, 696, 48},
    Gpu{"A30", 10.3, 10.3, 82, 165, 165, 933, 24},
    Gpu{"A10G", 0.49, 31.5, 35, 70, 70, 600, 24},
    Gpu{"A10", 0.49, 31.2, 62.5, 125, 125, 600, 24},
    Gpu{"L40S", 1.4, 91.6, 183, 362, 362, 864, 48},
    Gpu{"L40", 1.4, 90.5, 90.5, 181, 181, 864, 48},
    Gpu{"L4", 0.47, 30.3, 60, 121, 121, 300, 24},
    Gpu{"V100S", 8.2, 16.4, 16.4, 130, 0, 1134, 32},
    Gpu{"V100-PCIE", 7, 14, 14, 112, 0, 900, 32},
    Gpu{"V100", 7.8, 15.7, 15.7, 125, 0, 900, 32},
    Gpu{"T4", 0.25, 8.1, 8.1, 65, 0, 320, 16},
};

// Whether `part` occurs in `name` as a whole word.
bool has_word(std::string_view name, std::string_view part) {
  const auto at = name.find(part);
  if (at == std::string_view::npos) return false;
  const auto end = at + part.size();
  const auto is_word = [&](size_t i) { return std::isalnum(static_cast<unsigned char>(name[i])); };
  return (at == 0 || !is_word(at - 1)) && (end == name.size() || !is_word(end));
}

double teraflops(const Gpu& gpu, at::ScalarType type, bool tf32) {
  switch (type) {
    case at::kDouble:
      return gpu.float64;
    case at::kFloat:
      return tf32 ? gpu.tf32 : gpu.float32;
    case at::kHalf:
      return gpu.float16;
    case at::kBFloat16:
      return gpu.bfloat16;
    default:
      return 0;
  }
}

}  // namespace

std::optional<double> published_peak(std::string_view gpu_name, at::ScalarType type, bool tf32) {
  const auto* gpu = std::find_if(kGpus.begin(), kGpus.end(), [&](const Gpu& candidate) {
    return has_word(gpu_name, candidate.name);
  });
  if (gpu == kGpus.end()) return std::nullopt;
  const double peak = teraflops(*gpu, type, tf32);
  if (peak == 0) return std::nullopt;
  return peak * 1e12;
}

PublishedRates published_rates(const std::string& name, at::ScalarType type) {
  std::vector<std::string> names;
  for (const auto& gpu : kGpus) {
    names.emplace_back(gpu.name);
    if (lower_case(gpu.name) != lower_case(name)) continue;
    const double peak = teraflops(gpu, type, /*tf32=*/false);
    if (peak == 0) {
      throw Error("train", ErrorKind::usage,
                  {.what = "products of this type on " + name,
                   .got = c10::toString(type),
                   .expected = "a precision that the device computes in"});
    }
    return {.flops = peak * 1e12, .bandwidth = gpu.bandwidth * 1e9, .memory = gpu.memory * 1e9};
  }
  throw Error("train", ErrorKind::usage,
              {.what = "no published rates of this device",
               .got = name,
               .expected = fmt::format("one of {}", fmt::join(names, ", ")),
               .hint = "did you mean " + nearest(name, names) + "?"});
}

double measured_peak(at::ScalarType type, at::Device device) {
  // A GPU needs larger products than a CPU to be busy, and several products between waits.
  const int64_t size = device.is_cpu() ? 1024 : 4096, products = device.is_cpu() ? 1 : 16;
  constexpr double kSeconds = 0.2;
  const at::NoGradGuard no_grad;
  const auto options = at::TensorOptions().dtype(type).device(device);
  const auto a = at::ones({size, size}, options), b = at::ones({size, size}, options);
  auto result = at::mm(a, b);
  const auto wait = [&] { return result[0][0].item<double>(); };
  wait();
  const double work = 2.0 * static_cast<double>(size * size * size * products);
  double best = 0;
  const Stopwatch all;
  while (best == 0 || all.seconds() < kSeconds) {
    const Stopwatch one;
    for (int64_t i = 0; i < products; ++i) at::mm_out(result, a, b);
    wait();
    best = std::max(best, work / one.seconds());
  }
  return best;
}

double measured_bandwidth(at::Device device) {
  constexpr int64_t kCount = int64_t{1} << 24;  // 64 MiB each
  constexpr double kSeconds = 0.2, kBytes = 3.0 * sizeof(float) * kCount;
  const at::NoGradGuard no_grad;
  const auto a = at::ones({kCount}, device), b = at::ones({kCount}, device);
  auto result = at::add(a, b);
  const auto wait = [&] { return result[0].item<float>(); };
  wait();
  double best = 0;
  const Stopwatch all;
  while (best == 0 || all.seconds() < kSeconds) {
    const Stopwatch one;
    at::add_out(result, a, b);
    wait();
    best = std::max(best, kBytes / one.seconds());
  }
  return best;
}

Peak peak_of(at::ScalarType type, at::Device device) {
  const auto name = compat::gpu_name(device);
  const auto published = published_peak(name, type, at::globalContext().allowTF32CuBLAS());
  if (published) return {*published, "data sheet of " + name};
  return {measured_peak(type, device), "measured by matrix products"};
}

}  // namespace troika::train
