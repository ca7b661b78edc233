#include "bench/operator_time.h"

#include <ATen/record_function.h>

#include <cstring>
#include <ctime>
#include <memory>

namespace {

struct Operators {
  int inside = 0;
  double entered = 0;
  double seconds = 0;
};

thread_local Operators operators;

double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// LibTorch also records nodes of the autograd graph and of DistributedDataParallel, which are not
// operators.
bool is_operator(const at::RecordFunction& function) {
  const char* name = function.name();
  return std::strncmp(name, "aten::", 6) == 0 || std::strncmp(name, "troika::", 8) == 0;
}

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& function) {
  if (is_operator(function) && operators.inside++ == 0) operators.entered = processor_seconds();
  return nullptr;
}

void leave(const at::RecordFunction& function, at::ObserverContext*) {
  if (!is_operator(function) || --operators.inside > 0) return;
  operators.seconds += processor_seconds() - operators.entered;
}

}  // namespace

void operator_time_start() {
  at::addGlobalCallback(
      at::RecordFunctionCallback(&enter, &leave).scopes({at::RecordScope::FUNCTION}));
}

double operator_time_outside() {
  return processor_seconds() - operators.seconds;
}
