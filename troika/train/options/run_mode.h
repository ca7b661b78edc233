// Names the running call of a Trainer.
#pragma once

namespace troika::train {

enum class RunMode { fit, validate, test, predict };

// "fit", "validate", "test", "predict".
constexpr const char* run_mode_name(RunMode mode) {
  switch (mode) {
    case RunMode::fit:
      return "fit";
    case RunMode::validate:
      return "validate";
    case RunMode::test:
      return "test";
    case RunMode::predict:
      break;
  }
  return "predict";
}

}  // namespace troika::train
