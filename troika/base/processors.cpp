#include "troika/base/processors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/text.h"

namespace troika {

namespace {

// More than any Linux kernel supports; a plain cpu_set_t holds 1024.
constexpr int kMost = 8192;

// The kernel's bit mask of processors.
class Mask {
 public:
  Mask() : bits_{} {}
  explicit Mask(const Processors& processors) : bits_{} {
    for (const int processor : processors) {
      if (processor >= 0 && processor < kMost) CPU_SET_S(processor, bytes(), set());
    }
  }

  static constexpr size_t bytes() { return CPU_ALLOC_SIZE(kMost); }
  cpu_set_t* set() { return reinterpret_cast<cpu_set_t*>(bits_.data()); }
  Processors processors() {
    Processors result;
    for (int i = 0; i < kMost; ++i) {
      if (CPU_ISSET_S(i, bytes(), set())) result.push_back(i);
    }
    return result;
  }

 private:
  alignas(cpu_set_t) std::array<char, CPU_ALLOC_SIZE(kMost)> bits_;
};

[[noreturn]] void refuse(const Processors& processors, int error) {
  throw Error("base", ErrorKind::usage,
              {.what = "a thread cannot be restricted to these processors",
               .got = fmt::format("{} ({})", processors_text(processors), std::strerror(error)),
               .expected = "some of " + processors_text(allowed_processors())});
}

// Reads an integer from a file of /sys about a processor.
std::optional<int64_t> number(const std::filesystem::path& root, int processor,
                              const std::string& file) {
  const auto path = root / "sys/devices/system/cpu" / fmt::format("cpu{}", processor) / file;
  std::error_code none;
  if (!std::filesystem::exists(path, none)) return {};
  try {
    return parse_int(trim(read_file(path)));
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

Processors allowed_processors() {
  Mask mask;
  if (::sched_getaffinity(0, Mask::bytes(), mask.set()) != 0) return {};
  return mask.processors();
}

void run_on(const Processors& processors) {
  Mask mask(processors);
  if (::sched_setaffinity(0, Mask::bytes(), mask.set()) != 0) refuse(processors, errno);
}

void new_threads_run_on(const Processors& processors) {
  pthread_attr_t attributes;
  if (::pthread_getattr_default_np(&attributes) != 0) return;
  Mask mask(processors);
  // Size 0 removes the mask from the attributes.
  const size_t bytes = processors.empty() ? 0 : Mask::bytes();
  int error = ::pthread_attr_setaffinity_np(&attributes, bytes, mask.set());
  if (error == 0) error = ::pthread_setattr_default_np(&attributes);
  ::pthread_attr_destroy(&attributes);
  if (error != 0) refuse(processors, error);
}

std::string processors_text(const Processors& processors) {
  std::vector<std::string> ranges;
  for (size_t i = 0; i < processors.size();) {
    size_t last = i;
    while (last + 1 < processors.size() && processors[last + 1] == processors[last] + 1) ++last;
    ranges.push_back(last == i ? fmt::format("{}", processors[i])
                               : fmt::format("{}-{}", processors[i], processors[last]));
    i = last + 1;
  }
  return fmt::format("{}", fmt::join(ranges, ","));
}

Processors parse_processors(const std::string& text) {
  Processors result;
  if (text.empty()) return result;
  const auto fail = [&] {
    throw Error("base", ErrorKind::usage,
                {.what = "not a list of processors", .got = text, .expected = "one as 0-2,5"});
  };
  for (const auto& range : split(text, ',')) {
    const auto ends = split(range, '-');
    const auto first = parse_int(ends.front()), last = parse_int(ends.back());
    if (ends.size() > 2 || !first || !last || *first < 0 || *last < *first || *last >= kMost ||
        (!result.empty() && *first <= result.back())) {
      fail();
    }
    for (auto i = *first; i <= *last; ++i) result.push_back(static_cast<int>(i));
  }
  return result;
}

std::vector<Processors> cores_of(const Processors& processors, const std::filesystem::path& root) {
  // Key: package, last-level cache, die, core, and the processor's own number if its core is
  // unknown. Processors with equal keys share a core.
  std::map<std::array<int64_t, 5>, Processors> cores;
  for (const int processor : processors) {
    const auto of = [&](const char* file) { return number(root, processor, file).value_or(-1); };
    const auto core = of("topology/core_id");
    cores[{of("topology/physical_package_id"), of("cache/index3/id"), of("topology/die_id"), core,
           core < 0 ? processor : -1}]
        .push_back(processor);
  }
  std::vector<Processors> result;
  for (auto& [key, core] : cores) result.push_back(std::move(core));
  return result;
}

}  // namespace troika
