// The call of a trainer that runs.
#pragma once

namespace troika::train {

enum class Stage { fit, validate, test, predict };

// "fit", "validate", "test", "predict".
constexpr const char* stage_name(Stage stage) {
  switch (stage) {
    case Stage::fit:
      return "fit";
    case Stage::validate:
      return "validate";
    case Stage::test:
      return "test";
    case Stage::predict:
      break;
  }
  return "predict";
}

}  // namespace troika::train
