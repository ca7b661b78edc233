#include "troika/train/options/limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "troika/base/error.h"
#include "troika/base/text.h"

namespace troika::train {

namespace {

[[noreturn]] void refuse_limit(const std::string& option, std::string got, std::string expected) {
  throw Error(
      "train", ErrorKind::usage,
      {.what = option + " makes no sense", .got = std::move(got), .expected = std::move(expected)});
}

}  // namespace

int64_t batches_of(const std::string& option, const std::string& text, int64_t available) {
  if (const auto count = parse_int(text); count && *count >= 0) return std::min(*count, available);
  const auto share = parse_double(text);
  if (!share || !(*share >= 0 && *share <= 1)) {
    refuse_limit(option, text,
                 "a number of batches, for example 10, or a fraction, for example 0.1");
  }
  const auto batches = static_cast<int64_t>(std::floor(static_cast<double>(available) * *share));
  if (batches == 0 && *share > 0 && available > 0) {
    refuse_limit(option, fmt::format("{} of {} batches, which is none", text, available),
                 "at least one batch");
  }
  return batches;
}

double seconds_of(const std::string& option, const std::string& text) {
  if (text.empty()) return std::numeric_limits<double>::infinity();
  double seconds = 0;
  const auto parts = split(text, ':');
  constexpr std::array kUnits{86400.0, 3600.0, 60.0, 1.0};
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto part = parse_int(parts[i]);
    if (!part || *part < 0 || parts.size() != kUnits.size())
      refuse_limit(option, text, "DD:HH:MM:SS");
    seconds += static_cast<double>(*part) * kUnits[i];
  }
  return seconds;
}

int64_t evaluated_batches(const TrainOptions& options, RunMode mode, int64_t samples,
                          int64_t global_batch) {
  const auto& trainer = options.trainer;
  const int64_t available = (samples + global_batch - 1) / global_batch;
  switch (mode) {
    case RunMode::test:
      return batches_of("trainer.limit_test_batches", trainer.limit_test_batches, available);
    case RunMode::predict:
      return batches_of("trainer.limit_predict_batches", trainer.limit_predict_batches, available);
    default:
      return batches_of("trainer.limit_val_batches", trainer.limit_val_batches, available);
  }
}

void require_batch(const TrainOptions& options, int ranks, int64_t samples) {
  const int64_t whole = options.data.global_batch_size;
  const std::string option = whole > 0 ? "data.global_batch_size" : "data.batch_size";
  const auto refuse = [&](const std::string& what, std::string expected, std::string hint) {
    throw Error("train", ErrorKind::usage,
                {.what = option + what,
                 .got = std::to_string(whole > 0 ? whole : options.data.batch_size),
                 .expected = std::move(expected),
                 .hint = std::move(hint)});
  };
  if (whole > 0 && whole % ranks != 0) {
    refuse(fmt::format(" does not divide among {} ranks", ranks),
           fmt::format("a multiple of {}", ranks),
           "data.batch_size is the samples of each rank, and always divides");
  }
  if (samples < ranks) {
    throw Error("train", ErrorKind::usage,
                {.what = "training data with fewer samples than there are ranks",
                 .got = std::to_string(samples),
                 .expected = fmt::format(">= {}", ranks)});
  }
  const int64_t batch = whole > 0 ? whole : options.data.batch_size * ranks;
  if (batch <= samples) return;
  refuse(" is more than there is to train on",
         fmt::format("<= {}", whole > 0 ? samples / ranks * ranks : samples / ranks),
         whole > 0 || ranks == 1
             ? fmt::format("the training data has {} samples", samples)
             : fmt::format("the training data has {} samples for {} ranks", samples, ranks));
}

bool overfits(const TrainOptions& options) {
  return parse_double(options.trainer.overfit_batches) != 0;
}

Limits make_limits(const TrainOptions& options, int64_t micro_batches, int64_t validation_batches) {
  const auto& trainer = options.trainer;
  std::string training = trainer.limit_train_batches, validation = trainer.limit_val_batches;
  const auto name = [&](const char* limit) {
    return overfits(options) ? "trainer.overfit_batches" : limit;
  };
  if (overfits(options)) training = validation = trainer.overfit_batches;
  Limits result;
  result.micro_batches = batches_of(name("trainer.limit_train_batches"), training, micro_batches);
  if (result.micro_batches == 0)
    refuse_limit(name("trainer.limit_train_batches"), training, "at least one batch");
  result.validation_batches =
      batches_of(name("trainer.limit_val_batches"), validation, validation_batches);
  result.validation_every =
      batches_of("trainer.val_check_interval", trainer.val_check_interval, result.micro_batches);
  if (result.validation_every == 0) {
    refuse_limit("trainer.val_check_interval", trainer.val_check_interval, "at least one batch");
  }
  const int64_t sanity = trainer.num_sanity_val_steps;
  result.sanity_batches =
      sanity < 0 ? result.validation_batches : std::min(sanity, result.validation_batches);
  if (trainer.max_epochs < 0 && trainer.max_steps < 0 && trainer.max_time.empty()) {
    refuse_limit("trainer.max_epochs", "-1 without trainer.max_steps and max_time",
                 "one of these, to end the run");
  }
  return result;
}

std::vector<std::string> reached_limits(const TrainOptions& options, int64_t epochs,
                                        int64_t steps) {
  const auto& trainer = options.trainer;
  std::vector<std::string> reached;
  if (trainer.max_epochs >= 0 && epochs >= trainer.max_epochs) {
    reached.push_back(fmt::format("trainer.max_epochs = {}", trainer.max_epochs));
  }
  if (trainer.max_steps >= 0 && steps >= trainer.max_steps) {
    reached.push_back(fmt::format("trainer.max_steps = {}", trainer.max_steps));
  }
  return reached;
}

bool takes_default_epochs(const TrainOptions& options) {
  const auto& trainer = options.trainer;
  return trainer.max_epochs == 0 && trainer.max_steps < 0 && trainer.max_time.empty();
}

TrainOptions with_default_epochs(TrainOptions options) {
  constexpr int64_t kEpochs = 1000;
  auto& epochs = options.trainer.max_epochs;
  if (epochs == 0) epochs = takes_default_epochs(options) ? kEpochs : -1;
  return options;
}

TrainOptions with_fast_dev_run(TrainOptions options) {
  const int64_t batches = options.trainer.fast_dev_run;
  if (batches == 0) return options;
  auto& trainer = options.trainer;
  trainer.max_epochs = 1;
  trainer.max_steps = batches;
  for (auto* limit : {&trainer.limit_train_batches, &trainer.limit_val_batches,
                      &trainer.limit_test_batches, &trainer.limit_predict_batches}) {
    *limit = std::to_string(batches);
  }
  trainer.overfit_batches = "0";
  trainer.val_check_interval = "1.0";
  trainer.check_val_every_n_epoch = 1;
  trainer.num_sanity_val_steps = 0;
  trainer.loggers.clear();
  options.checkpoint.enabled = false;
  options.early_stopping.monitor.clear();
  options.swa.swa_lrs = 0;
  return options;
}

int64_t global_batch(const TrainOptions& options, int ranks) {
  const int64_t whole = options.data.global_batch_size;
  return whole > 0 ? whole : options.data.batch_size * ranks;
}

data::LoaderOptions loader_options(const TrainOptions& options, c10::DeviceType device) {
  return {.workers = static_cast<int>(options.data.workers),
          .prefetch = static_cast<int>(options.data.prefetch),
          .device = device};
}

}  // namespace troika::train
