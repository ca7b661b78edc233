#include "troika/base/memory.h"

#include <atomic>

namespace troika::memory {

namespace {

std::atomic<int64_t> g_live = 0;
std::atomic<int64_t> g_peak = 0;

}  // namespace

void add(int64_t bytes) {
  const int64_t now = g_live += bytes;
  int64_t known = g_peak;
  while (now > known && !g_peak.compare_exchange_weak(known, now)) {
  }
}

int64_t live() {
  return g_live;
}

int64_t peak() {
  return g_peak;
}

void restart_peak() {
  g_peak = g_live.load();
}

}  // namespace troika::memory
