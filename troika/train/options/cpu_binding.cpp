#include "troika/train/options/cpu_binding.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <set>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/base/text.h"
#include "troika/compat/compute_threads.h"
#include "troika/compat/torch.h"

namespace troika::train {

namespace {

bool overlap(const Processors& a, const Processors& b) {
  return std::ranges::any_of(a, [&](int one) { return std::ranges::binary_search(b, one); });
}

std::vector<Processors> each_by_itself(const std::vector<Processors>& cores) {
  std::vector<Processors> result;
  for (const auto& core : cores) {
    for (const int processor : core) result.push_back({processor});
  }
  return result;
}

// Returns the environment variable by which the user makes OpenMP place threads; empty if there is
// none.
std::string placed_by_openmp() {
  for (const char* variable :
       {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"}) {
    const char* value = std::getenv(variable);
    if (value && *value && lower_case(value) != "false") return variable;
  }
  return {};
}

// Several ranks may be threads of one process, and may bind at the same time.
std::mutex bindings_mutex;
int bindings = 0;

// New threads inherit their creator's mask again when the last binding of the process is gone.
void count_binding(int more, const Processors& of_new_threads) {
  const std::lock_guard lock(bindings_mutex);
  if (bindings == 0) new_threads_run_on(of_new_threads);
  bindings += more;
  if (bindings == 0) new_threads_run_on({});
}

}  // namespace

const std::vector<std::string>& cpu_bind_names() {
  static const std::vector<std::string> names{"auto", "none", "cores"};
  return names;
}

CoreShare share_of(const std::vector<RankProcessors>& ranks, size_t rank,
                   const std::filesystem::path& root) {
  const auto& own = ranks[rank];
  size_t sharing = 0,
         before = 0;  // ranks with the same processors, and how many of them come before `rank`
  for (size_t r = 0; r < ranks.size(); ++r) {
    const auto& other = ranks[r];
    if (other.node != own.node || !overlap(other.allowed, own.allowed)) continue;
    if (other.allowed != own.allowed) {
      return {
          .processors = {},
          .problem = fmt::format("rank {} may run on processors {} and rank {} on {}", rank,
                                 processors_text(own.allowed), r, processors_text(other.allowed))};
    }
    ++sharing;
    if (r < rank) ++before;
  }
  if (sharing <= 1) return {};
  auto cores = cores_of(own.allowed, root);
  if (cores.size() < sharing) cores = each_by_itself(cores);
  CoreShare share{.processors = {}, .problem = {}, .divides = true, .processes = sharing};
  for (size_t i = before * cores.size() / sharing; i < (before + 1) * cores.size() / sharing; ++i) {
    std::ranges::copy(cores[i], std::back_inserter(share.processors));
  }
  std::ranges::sort(share.processors);
  if (share.processors.size() >= static_cast<size_t>(own.threads)) return share;
  return {.processors = {},
          .problem = fmt::format("{} processes of {} threads on processors {}", sharing,
                                 own.threads, processors_text(own.allowed))};
}

CoreShare share_of(const comm::Group& group) {
  const auto own =
      fmt::format("{} {}", at::get_num_threads(), processors_text(allowed_processors()));
  std::vector<RankProcessors> ranks;
  for (const auto& text : group.all_gather_text(own, "processors of ranks")) {
    const auto words = split(text, ' ');
    ranks.push_back({.node = group.nodes()[ranks.size()],
                     .threads = static_cast<int>(parse_int(words[0]).value()),
                     .allowed = parse_processors(words[1])});
  }
  auto share = share_of(ranks, static_cast<size_t>(group.rank()));
  if (const auto variable = placed_by_openmp(); !variable.empty()) {
    share = {.processors = {}, .problem = variable + " in the environment"};
  }
  for (const auto& text :
       group.all_gather_text(share.divides ? "divides" : share.problem, "shares of processors")) {
    if (text == "divides") {
      share.divides = true;
    } else if (!text.empty()) {
      return {.processors = {}, .problem = text};
    }
  }
  return share;
}

CpuBinding::CpuBinding(const Processors& processors) {
  if (processors.empty()) return;
  const auto allowed = allowed_processors();
  if (!std::ranges::includes(allowed, processors)) {
    throw Error("train", ErrorKind::usage,
                {.what = "threads cannot be bound to these processors",
                 .got = processors_text(processors),
                 .expected = "some of " + processors_text(allowed)});
  }
  count_binding(+1, allowed);
  before_ = allowed;
  compat::on_each_compute_thread([&] { run_on(processors); });
}

CpuBinding::~CpuBinding() {
  if (before_.empty()) return;
  try {
    compat::on_each_compute_thread([&] { run_on(before_); });
    count_binding(-1, before_);
  } catch (const std::exception& problem) {
    log::warn("[train] threads stay bound: {}", problem.what());
  }
}

}  // namespace troika::train
