// Finds the functions that a task overrides. C++ has no way to ask an object, so this compares the
// addresses that calls go to (GCC manual, "Bound Member Functions").
#include "troika/compat/torch.h"
#include "troika/train/task/task.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpmf-conversions"

namespace troika::train {

namespace {

template <auto function>
struct Overriding;

template <typename Result, typename... Arguments, Result (Task::*function)(Arguments...)>
struct Overriding<function> {
  using Called = Result (*)(Task*, Arguments...);
  static bool is_in(Task& task) { return (Called)(task.*function) != (Called)(function); }
};

}  // namespace

bool Task::has_own_loss() const {
  return loss_ || Overriding<&Task::loss>::is_in(const_cast<Task&>(*this));
}

std::vector<std::string> Task::own_steps() const {
  auto& task = const_cast<Task&>(*this);
  std::vector<std::string> names;
  const auto add_if = [&](bool is_own, const char* name) {
    if (is_own) names.emplace_back(name);
  };
  add_if(Overriding<&Task::training_step>::is_in(task), "training_step");
  add_if(Overriding<&Task::validation_step>::is_in(task), "validation_step");
  add_if(Overriding<&Task::test_step>::is_in(task), "test_step");
  add_if(Overriding<&Task::predict_step>::is_in(task), "predict_step");
  return names;
}

}  // namespace troika::train

#pragma GCC diagnostic pop
