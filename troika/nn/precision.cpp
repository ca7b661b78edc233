#include "troika/nn/precision.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "troika/base/config.h"
#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/layout/precision_names.h"

namespace troika::nn {

namespace {

struct PrecisionName {
  const char* name;
  const char* canonical;
  at::ScalarType parameters;
  at::ScalarType compute;
};

constexpr std::array<PrecisionName, 10> kPrecisions{{
    {"32", "32", at::kFloat, at::kFloat},
    {"64", "64", at::kDouble, at::kDouble},
    {"bf16-mixed", "bf16-mixed", at::kFloat, at::kBFloat16},
    {"16-mixed", "16-mixed", at::kFloat, at::kHalf},
    {"bf16-true", "bf16-true", at::kBFloat16, at::kBFloat16},
    {"16-true", "16-true", at::kHalf, at::kHalf},
    {"32-true", "32", at::kFloat, at::kFloat},
    {"64-true", "64", at::kDouble, at::kDouble},
    {"bf16", "bf16-mixed", at::kFloat, at::kBFloat16},
    {"16", "16-mixed", at::kFloat, at::kHalf},
}};
static_assert(std::ranges::equal(kPrecisions, layout::kPrecisionNames, {},
                                 [](const auto& entry) { return std::string_view(entry.name); }));

// Tries the operators, since support came to devices in many different versions of LibTorch.
bool can_compute(at::ScalarType type, c10::DeviceType device) {
  const at::NoGradGuard no_grad;
  const auto options = at::TensorOptions().dtype(type).device(device);
  try {
    at::mm(at::ones({2, 2}, options), at::ones({2, 2}, options));
    at::conv2d(at::ones({1, 2, 3, 3}, options), at::ones({2, 2, 3, 3}, options));
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

}  // namespace

const std::vector<std::string>& precision_names() {
  static const auto names = [] {
    std::vector<std::string> result;
    for (const auto& entry : kPrecisions) result.emplace_back(entry.name);
    return result;
  }();
  return names;
}

const std::map<std::string, std::string>& other_precision_names() {
  static const std::map<std::string, std::string> names{
      {"fp16", "16-mixed"}, {"float16", "16-mixed"},
      {"half", "16-mixed"}, {"bfloat16", "bf16-mixed"},
      {"fp32", "32"},       {"float32", "32"},
      {"float", "32"},      {"full", "32"},
      {"fp64", "64"},       {"float64", "64"},
      {"double", "64"}};
  return names;
}

NumericPrecision parse_precision(const std::string& name) {
  const auto found = std::find_if(kPrecisions.begin(), kPrecisions.end(),
                                  [&](const auto& entry) { return entry.name == name; });
  if (found == kPrecisions.end()) {
    const auto meant = config::meant_name(name, precision_names(), other_precision_names());
    throw Error("nn", ErrorKind::usage,
                {.what = "unknown precision", .got = name, .hint = "did you mean " + meant + "?"});
  }
  return {found->canonical, found->parameters, found->compute};
}

bool is_supported(const NumericPrecision& precision, c10::DeviceType device) {
  return can_compute(precision.compute, device);
}

void require_supported(const NumericPrecision& precision, c10::DeviceType device) {
  if (is_supported(precision, device)) return;
  throw Error("nn", ErrorKind::usage,
              {.what = fmt::format("LibTorch {} has no {} matrix products and convolutions on {}",
                                   compat::torch_version(), c10::toString(precision.compute),
                                   c10::DeviceTypeName(device, /*lower_case=*/true)),
               .got = "precision " + precision.name,
               .hint = precision.is_mixed() ? "use bf16-mixed" : "use bf16-true"});
}

}  // namespace troika::nn
