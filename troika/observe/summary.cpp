#include "troika/observe/summary.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/file.h"

namespace troika::observe {

namespace {

double number_or_nan(const nlohmann::ordered_json& json) {
  return json.is_null() ? std::nan("") : json.get<double>();
}

[[noreturn]] void damaged(const std::filesystem::path& path, const std::string& got) {
  throw Error("observe", ErrorKind::usage,
              {.what = path.string() + " is damaged",
               .got = got,
               .expected = "a summary that troika train wrote"});
}

std::vector<PhaseTime> phases_of(const nlohmann::ordered_json& json) {
  std::vector<PhaseTime> phases;
  for (const auto& [phase, ranks] : json.items()) {
    phases.push_back({phase, {}});
    for (const auto& number : ranks) phases.back().milliseconds.push_back(number_or_nan(number));
  }
  return phases;
}

nlohmann::ordered_json json_of(const std::optional<Roofline>& roofline) {
  if (!roofline) return nullptr;
  auto work = nlohmann::ordered_json::object();
  for (const auto& [phase, flops, bytes, bound] : roofline->work) {
    work[phase] = {{"flops", flops}, {"bytes", bytes}, {"bound_milliseconds", bound}};
  }
  return {{"flops_per_second", roofline->flops_per_second},
          {"bytes_per_second", roofline->bytes_per_second},
          {"work", work}};
}

// Files of earlier versions have one number for all ranks.
std::vector<int64_t> predictions_of(const nlohmann::ordered_json& json) {
  const auto& all = json.at("predicted_tensor_bytes");
  if (all.is_array()) return all;
  if (all == 0) return {};
  return std::vector<int64_t>(json.at("world_size"), all.get<int64_t>());
}

// Files of earlier versions lack it.
std::optional<Roofline> roofline_of(const nlohmann::ordered_json& json) {
  const auto found = json.find("roofline");
  if (found == json.end() || found->is_null()) return std::nullopt;
  Roofline roofline{.flops_per_second = number_or_nan(found->at("flops_per_second")),
                    .bytes_per_second = number_or_nan(found->at("bytes_per_second")),
                    .work = {}};
  for (const auto& [phase, work] : found->at("work").items()) {
    roofline.work.push_back({phase, number_or_nan(work.at("flops")),
                             number_or_nan(work.at("bytes")),
                             number_or_nan(work.at("bound_milliseconds"))});
  }
  return roofline;
}

// Bin i of a Median counts values from kLowestBin * kBinGrowth^i on.
constexpr double kLowestBin = 1e-7, kHighestBin = 1e9, kBinGrowth = 1.01;

size_t bin_of(double value) {
  static const double per_bin = std::log(kBinGrowth);
  return static_cast<size_t>(std::log(std::clamp(value, kLowestBin, kHighestBin) / kLowestBin) /
                             per_bin);
}

// The value with the same relative distance to both bounds of the bin.
double middle_of(size_t bin) {
  return kLowestBin * std::pow(kBinGrowth, static_cast<double>(bin)) * 2 * kBinGrowth /
         (1 + kBinGrowth);
}

}  // namespace

std::string troika_version() {
  return TROIKA_VERSION;
}

void write_summary(const std::filesystem::path& path, const RunSummary& summary) {
  auto phases = nlohmann::ordered_json::object();
  for (const auto& [phase, milliseconds] : summary.phase_milliseconds) {
    phases[phase] = milliseconds;
  }
  // nlohmann writes NaN and infinities as null.
  const nlohmann::ordered_json json{
      {"name", summary.name},
      {"status", summary.status},
      {"world_size", summary.world_size},
      {"steps", summary.steps},
      {"samples", summary.samples},
      {"epochs", summary.epochs},
      {"train_loss", summary.train_loss},
      {"validation_loss", summary.validation_loss},
      {"validation_accuracy", summary.validation_accuracy},
      {"samples_per_second", summary.samples_per_second},
      {"median_step_milliseconds", summary.median_step_milliseconds},
      {"phase_milliseconds", phases},
      {"bubble", summary.bubble},
      {"roofline", json_of(summary.roofline)},
      {"seconds", summary.seconds},
      {"peak_resident_bytes", summary.peak_resident_bytes},
      {"peak_tensor_bytes", summary.peak_tensor_bytes},
      {"predicted_tensor_bytes", summary.predicted_tensor_bytes},
      {"torch_version", summary.torch_version},
      {"troika_version", summary.troika_version},
      {"run_folder", summary.run_folder},
      {"checkpoint", summary.checkpoint},
      {"best_checkpoint", summary.best_checkpoint},
      {"metrics", summary.metrics},
      {"failure", summary.failure},
  };
  // Paths and names may not be UTF-8; a summary with replaced characters is better than none.
  const auto replace = nlohmann::ordered_json::error_handler_t::replace;
  write_file_atomically(path, json.dump(2, ' ', false, replace) + "\n");
}

RunSummary read_summary(const std::filesystem::path& path) {
  try {
    const auto json = nlohmann::ordered_json::parse(read_file(path));
    RunSummary summary{
        .name = json.at("name"),
        .status = json.at("status"),
        .world_size = json.at("world_size"),
        .steps = json.at("steps"),
        .samples = json.at("samples"),
        .epochs = json.at("epochs"),
        .train_loss = number_or_nan(json.at("train_loss")),
        .validation_loss = number_or_nan(json.at("validation_loss")),
        .validation_accuracy = number_or_nan(json.at("validation_accuracy")),
        .samples_per_second = number_or_nan(json.at("samples_per_second")),
        .median_step_milliseconds = number_or_nan(json.at("median_step_milliseconds")),
        .phase_milliseconds = phases_of(json.at("phase_milliseconds")),
        .bubble = json.value("bubble", std::vector<double>()),
        .roofline = roofline_of(json),
        .seconds = number_or_nan(json.at("seconds")),
        .peak_resident_bytes = json.at("peak_resident_bytes"),
        .peak_tensor_bytes = json.at("peak_tensor_bytes"),
        .predicted_tensor_bytes = predictions_of(json),
        .torch_version = json.at("torch_version"),
        .troika_version = json.at("troika_version"),
        .run_folder = json.at("run_folder"),
        .checkpoint = json.at("checkpoint"),
        .best_checkpoint = json.value("best_checkpoint", ""),
        .failure = json.value("failure", "")};
    if (const auto metrics = json.find("metrics"); metrics != json.end()) {
      for (const auto& [name, value] : metrics->items()) {
        summary.metrics[name] = number_or_nan(value);
      }
    }
    for (const auto& [phase, ranks] : summary.phase_milliseconds) {
      if (static_cast<int64_t>(ranks.size()) == summary.world_size) continue;
      damaged(path, "times of " + phase + " for another number of ranks than world_size");
    }
    for (const auto* peaks : {&summary.peak_resident_bytes, &summary.peak_tensor_bytes,
                              &summary.predicted_tensor_bytes}) {
      if (peaks->empty() || static_cast<int64_t>(peaks->size()) == summary.world_size) continue;
      damaged(path, "peaks of memory for another number of ranks than world_size");
    }
    return summary;
  } catch (const nlohmann::json::exception& problem) {
    damaged(path, problem.what());
  }
}

int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key;) {
    int64_t kibibytes = 0;
    if (key == "VmHWM:" && status >> kibibytes) return kibibytes * 1024;
    status.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  // If the kernel does not report VmHWM: equivalent, but it starts at the parent process's peak.
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

void Median::add(double value) {
  TROIKA_CHECK(!std::isnan(value), "a NaN has no place in an order");
  ++count_;
  if (!bins_.empty()) {
    ++bins_[bin_of(value)];
    return;
  }
  values_.push_back(value);
  if (values_.size() < kExact) return;
  bins_.resize(bin_of(kHighestBin) + 1);
  for (const double known : std::exchange(values_, {})) ++bins_[bin_of(known)];
}

double Median::value() const {
  if (count_ == 0) return std::nan("");
  return (at((count_ - 1) / 2) + at(count_ / 2)) / 2;
}

double Median::at(int64_t place) const {
  if (bins_.empty()) {
    auto sorted = values_;
    const auto found = sorted.begin() + place;
    std::nth_element(sorted.begin(), found, sorted.end());
    return *found;
  }
  size_t bin = 0;
  for (int64_t seen = bins_[0]; seen <= place; seen += bins_[bin]) ++bin;
  return middle_of(bin);
}

}  // namespace troika::observe
