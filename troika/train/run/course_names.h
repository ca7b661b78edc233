// The names, in checkpoints, of a run's state outside the engine.
#pragma once

#include <string>

#include "troika/train/run/callback.h"

namespace troika::train {

inline constexpr const char* kRandomPrefix = "random.";
inline constexpr const char* kSeed = "seed";
inline constexpr const char* kLinks = "link_bandwidths";
inline constexpr const char* kLoopsPrefix = "loops.";
inline constexpr const char* kLog = "log.training";
inline constexpr const char* kRunId = "run_id";

inline std::string callback_prefix(const Callback& callback) {
  return "callback." + callback.name() + ".";
}

}  // namespace troika::train
