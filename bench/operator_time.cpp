#include "bench/operator_time.h"

#include <ATen/record_function.h>

#include <chrono>
#include <cstring>
#include <memory>

namespace {

using Clock = std::chrono::steady_clock;

struct Operators {
  int inside = 0;
  Clock::time_point entered;
  double seconds = 0;
};

thread_local Operators operators;

// Nodes of the graph and of DistributedDataParallel are recorded, too.
bool is_operator(const at::RecordFunction& function) {
  const char* name = function.name();
  return std::strncmp(name, "aten::", 6) == 0 || std::strncmp(name, "troika::", 8) == 0;
}

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& function) {
  if (is_operator(function) && operators.inside++ == 0) operators.entered = Clock::now();
  return nullptr;
}

void leave(const at::RecordFunction& function, at::ObserverContext*) {
  if (!is_operator(function) || --operators.inside > 0) return;
  operators.seconds += std::chrono::duration<double>(Clock::now() - operators.entered).count();
}

}  // namespace

void operator_time_start() {
  at::addGlobalCallback(
      at::RecordFunctionCallback(&enter, &leave).scopes({at::RecordScope::FUNCTION}));
}

double operator_time_seconds() {
  return operators.seconds;
}
