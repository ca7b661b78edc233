// Calls the hooks of one call of the trainer, in order.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "troika/base/log.h"
#include "troika/observe/profile.h"
#include "troika/train/run/callback.h"
#include "troika/train/run/fit_context.h"

namespace troika::train {

// Calls a hook of all callbacks, then of the task. References must outlive this object. `profile`
// may be null.
class HookCalls {
 public:
  HookCalls(FitContext& context, const Callbacks& callbacks, observe::Profile* profile)
      : context_(context), profile_(profile) {
    for (const auto& callback : callbacks) {
      hooks_.push_back({callback.get(), "[Callback]" + callback->name(), callback->monitors()});
    }
    hooks_.push_back({&context.task.hooks(), "[Task]", false});
  }

  // `name` is the hook's name in the profile.
  template <typename... Parameters, typename... Arguments>
  void call(const char* name, void (Hooks::*hook)(FitContext&, Parameters...),
            const Arguments&... arguments) const {
    for (const auto& one : hooks_) call_one(one, name, hook, arguments...);
  }
  // With `that_monitor`, calls a hook of the callbacks whose monitors() is true; otherwise, of all
  // other callbacks and the task.
  void call_those(bool that_monitor, const char* name, void (Hooks::*hook)(FitContext&)) const {
    for (const auto& one : hooks_) {
      if (one.monitors == that_monitor) call_one(one, name, hook);
    }
  }
  // Calls on_exception. Logs errors of the hooks themselves.
  void tell(const std::exception& problem) const {
    try {
      call("on_exception", &Hooks::on_exception, problem);
    } catch (const std::exception& another) {
      log::error("in on_exception: {}", another.what());
    }
  }

 private:
  struct One {
    Hooks* hooks;
    std::string owner;
    bool monitors;
  };

  template <typename Hook, typename... Arguments>
  void call_one(const One& one, const char* name, Hook hook, const Arguments&... arguments) const {
    if (!profile_) return (one.hooks->*hook)(context_, arguments...);
    const auto start = Clock::now();
    (one.hooks->*hook)(context_, arguments...);
    profile_->add(one.owner + "." + name, Clock::now() - start);
  }

  FitContext& context_;
  observe::Profile* profile_;
  std::vector<One> hooks_;
};

}  // namespace troika::train
