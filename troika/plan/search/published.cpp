#include "troika/plan/search/published.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "troika/plan/errors/refuse.h"
#include "troika/plan/search/graph_cuts.h"

namespace troika::plan {

using layout::Profile;

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kEqualTimes = 1e-12;
// The most cuts for an exact search. If there are more, the search considers kSomeCuts of them, or
// kSomeCutsOfLevels with several levels, for which its time grows with the third power of the
// number of cuts.
constexpr size_t kMostCuts = 2000, kSomeCuts = 4000, kSomeCutsOfLevels = 500;

// The quantity that the search minimises: the time of a plan within the memory limit, or the memory
// that a plan needs.
enum class Objective { seconds, bytes };

// Finds the best value of each range of blocks. The range from `start` to `end` has the blocks of
// cut `end` that are not in cut `start` - 1; with start 0, it has all blocks of cut `end`.
class Solver {
 public:
  Solver(const GraphCuts& cuts, const PublishedOptions& options, Objective objective)
      : cuts_(cuts.cuts), options_(options), objective_(objective) {
    inner_.push_back({});
    for (size_t level = 0; level + 1 < options_.levels.size(); ++level) add_level(level);
  }

  double best() const {
    return row(options_.levels.size() - 1, 0)[cell(options_.levels.size() - 1, cuts_.size() - 1,
                                                   machines(options_.levels.size() - 1))];
  }

  std::vector<PublishedStage> stages() const {
    std::vector<PublishedStage> stages;
    expand(options_.levels.size() - 1, 0, cuts_.size() - 1, 1, stages);
    return stages;
  }

 private:
  // Values of the ranges with one start, by end and number of machines.
  using Row = std::vector<double>;

  struct Range {
    double seconds, activation_bytes, parameter_bytes;
    double stashed() const { return activation_bytes + parameter_bytes; }
  };
  // The last stage of a range, after the cut `split`; none if the whole range is one stage.
  struct Choice {
    size_t stages = 0;
    std::optional<size_t> split;
    int used = 0;      // machines of the range
    int replicas = 0;  // of the last stage
  };
  struct Trace {
    size_t level, start;
    double limit;
    const Row& row;
    std::map<std::pair<size_t, int>, Choice> known;
  };

  int machines(size_t level) const { return options_.levels[level].machines; }
  size_t cell(size_t level, size_t end, int used) const {
    return end * static_cast<size_t>(machines(level)) + static_cast<size_t>(used) - 1;
  }
  // Whether cut `end` contains cut `start` - 1.
  bool is_range(size_t start, size_t end) const {
    return start == 0 || (end >= start && cuts_[end].contains(cuts_[start - 1]));
  }
  Range range(size_t start, size_t end) const {
    const auto& last = cuts_[end];
    Range range{last.seconds, last.activation_bytes, last.parameter_bytes};
    if (start == 0) return range;
    const auto& before = cuts_[start - 1];
    return {range.seconds - before.seconds, range.activation_bytes - before.activation_bytes,
            range.parameter_bytes - before.parameter_bytes};
  }
  // The value of a range on one machine of the level.
  double of_machine(size_t level, size_t start, size_t end) const {
    if (level > 0) return inner_[level][start * cuts_.size() + end];
    return objective_ == Objective::seconds ? range(start, end).seconds : 0;
  }
  // The time of a stage on `replicas` machines; `rounds` minibatches are finished between two
  // exchanges of gradients.
  double stage_seconds(size_t level, double alone, double parameter_bytes, int replicas,
                       int rounds) const {
    const double exchange = 4.0 * (replicas - 1) * parameter_bytes /
                            (options_.levels[level].bandwidth * replicas) / rounds;
    const double both =
        options_.model == PublishedModel::sum ? alone + exchange : std::max(alone, exchange);
    return both / replicas;
  }
  // Returns the value of a stage on the last `replicas` of `used` machines of the level, given its
  // value without memory. In seconds, a stage that does not fit takes infinitely long.
  double with_memory(size_t level, double value, const Range& range, int used, int replicas) const {
    if (objective_ == Objective::seconds && !options_.memory_bytes) return value;
    const double copies = std::ceil(static_cast<double>(machines(level) - used) / replicas);
    const double bytes = copies * range.stashed();
    if (objective_ == Objective::bytes) return std::max(value, bytes);
    return bytes > *options_.memory_bytes ? kNever : value;
  }
  double one_stage(size_t level, size_t start, size_t end, int used) const {
    if (options_.straight && used > 1) return kNever;
    const auto facts = range(start, end);
    double value = of_machine(level, start, end);
    if (objective_ == Objective::seconds) {
      const int rounds = level == 0 ? 1 : machines(level - 1);
      value = stage_seconds(level, value, facts.parameter_bytes, used, rounds);
    }
    return with_memory(level, value, facts, used, used);
  }
  // Returns the value of the last stage of a range, which begins after the cut `split`, without
  // memory.
  double last_stage(size_t level, size_t split, size_t end, int replicas) const {
    const double alone = of_machine(level, split + 1, end);
    if (objective_ == Objective::bytes) return alone;
    double value = stage_seconds(level, alone, range(split + 1, end).parameter_bytes, replicas, 1);
    if (options_.compression_ratio) {
      const double rate = options_.levels[level].bandwidth * replicas * *options_.compression_ratio;
      value = std::max(value, 2 * cuts_[split].crossing_bytes / rate);
      if (end + 1 < cuts_.size()) value = std::max(value, 2 * cuts_[end].crossing_bytes / rate);
    }
    return value;
  }
  bool leaves_idle(size_t start, size_t end) const {
    return options_.fewer_machines && (start > 0 || end > 0);
  }
  bool is_split(size_t start, size_t split, size_t end) const {
    return is_range(start, split) && cuts_[end].contains(cuts_[split]);
  }

  // Returns how many copies of a range fit into the memory, or the level's number of machines if
  // more fit.
  int most_copies(size_t level, const Range& range) const {
    const double bytes = range.stashed(), memory = *options_.memory_bytes;
    int copies = machines(level);
    if (copies * bytes > memory) copies = static_cast<int>(memory / bytes);
    // The quotient may be rounded up.
    return copies * bytes > memory ? copies - 1 : copies;
  }

  // Improves the values of the ranges up to `end` by plans whose last stage begins after the cut
  // `split`.
  void add_split(size_t level, size_t split, size_t end, Row& row) const {
    const int all = machines(level), most = options_.straight ? 1 : all - 1;
    const double* first = &row[cell(level, split, 1)];
    double* best = &row[cell(level, end, 1)];
    const auto facts = range(split + 1, end);
    const bool limits = objective_ == Objective::seconds && options_.memory_bytes;
    const int copies = limits ? most_copies(level, facts) : 0;
    double slowest = 0;  // of the values that a stage may improve
    for (int used = 2; used <= all; ++used) slowest = std::max(slowest, best[used - 1]);
    for (int replicas = 1; replicas <= most; ++replicas) {
      const double last = last_stage(level, split, end, replicas);
      if (last >= slowest) continue;
      int least = replicas + 1;
      if (limits) least = std::max(least, all - copies * replicas);
      for (int used = least; used <= all; ++used) {
        const double own =
            objective_ == Objective::bytes ? with_memory(level, last, facts, used, replicas) : last;
        best[used - 1] = std::min(best[used - 1], std::max(first[used - replicas - 1], own));
      }
    }
  }
  // Whether a last stage that begins after the cut `split` is too slow to improve any value of the
  // range.
  bool is_too_slow(size_t level, size_t split, size_t end, const Row& row) const {
    if (objective_ == Objective::bytes) return false;
    const int all = machines(level);
    double most = options_.straight ? 1 : all - 1;
    for (size_t below = 0; below < level; ++below) most *= machines(below);
    const auto* best = &row[cell(level, end, 1)];
    const double least = range(split + 1, end).seconds / most * (1 - kEqualTimes);
    return std::all_of(best + 1, best + all, [&](double value) { return value <= least; });
  }

  Row row(size_t level, size_t start) const {
    const int all = machines(level);
    Row row(cuts_.size() * static_cast<size_t>(all), kNever);
    for (size_t end = start; end < cuts_.size(); ++end) {
      if (!is_range(start, end)) continue;
      for (int used = 1; used <= all; ++used) {
        row[cell(level, end, used)] = one_stage(level, start, end, used);
      }
      // If this last stage is too slow, so are those of all earlier splits, which are longer.
      for (size_t split = end; all > 1 && split-- > start;) {
        if (is_too_slow(level, split, end, row)) break;
        if (is_split(start, split, end)) add_split(level, split, end, row);
      }
      for (int used = 2; leaves_idle(start, end) && used <= all; ++used) {
        auto& value = row[cell(level, end, used)];
        value = std::min(value, row[cell(level, end, used - 1)]);
      }
    }
    return row;
  }

  void add_level(size_t level) {
    std::vector<double> values((cuts_.size() + 1) * cuts_.size(), kNever);
    for (size_t start = 0; start < cuts_.size(); ++start) {
      const auto of_start = row(level, start);
      for (size_t end = start; end < cuts_.size(); ++end) {
        values[start * cuts_.size() + end] = of_start[cell(level, end, machines(level))];
      }
    }
    inner_.push_back(std::move(values));
  }

  // Returns the choice with the fewest stages whose value is at most the limit.
  const Choice& fewest(Trace& trace, size_t end, int used) const {
    const auto found = trace.known.find({end, used});
    if (found != trace.known.end()) return found->second;
    const auto [level, start, limit] = std::tuple(trace.level, trace.start, trace.limit);
    Choice choice;
    if (one_stage(level, start, end, used) <= limit) {
      choice = {.stages = 1, .split = {}, .used = used, .replicas = used};
    } else {
      if (used > 1 && leaves_idle(start, end) && trace.row[cell(level, end, used - 1)] <= limit) {
        choice = fewest(trace, end, used - 1);
      }
      const int most = options_.straight ? 1 : used - 1;
      for (size_t split = start; used > 1 && split < end; ++split) {
        if (!is_split(start, split, end)) continue;
        for (int replicas = 1; replicas <= most; ++replicas) {
          if (trace.row[cell(level, split, used - replicas)] > limit) continue;
          const double last = last_stage(level, split, end, replicas);
          if (with_memory(level, last, range(split + 1, end), used, replicas) > limit) continue;
          const size_t stages = fewest(trace, split, used - replicas).stages + 1;
          if (choice.stages > 0 && choice.stages <= stages) continue;
          choice = {.stages = stages, .split = split, .used = used, .replicas = replicas};
        }
      }
    }
    return trace.known[{end, used}] = choice;
  }

  // Adds the best stages of a range on all machines of the level to `stages`, with `copies` times
  // their replicas.
  void expand(size_t level, size_t start, size_t end, int copies,
              std::vector<PublishedStage>& stages) const {
    const auto values = row(level, start);
    const double value = values[cell(level, end, machines(level))];
    Trace trace{level, start, value + std::abs(value) * kEqualTimes, values, {}};
    std::vector<std::pair<size_t, Choice>> reversed;
    size_t last = end;
    for (int used = machines(level);;) {
      const Choice choice = fewest(trace, last, used);
      reversed.emplace_back(last, choice);
      if (!choice.split) break;
      last = *choice.split;
      used = choice.used - choice.replicas;
    }
    for (auto at = reversed.rbegin(); at != reversed.rend(); ++at) {
      const auto& [stage_end, choice] = *at;
      const size_t stage_start = choice.split ? *choice.split + 1 : start;
      if (level > 0) {
        expand(level - 1, stage_start, stage_end, copies * choice.replicas, stages);
      } else {
        stages.push_back({copies * choice.replicas, blocks_of(stage_start, stage_end)});
      }
    }
  }
  std::vector<size_t> blocks_of(size_t start, size_t end) const {
    std::vector<size_t> blocks;
    for (size_t block = 0; block < cuts_[end].members.size() * 64; ++block) {
      if (cuts_[end].has(block) && !(start > 0 && cuts_[start - 1].has(block))) {
        blocks.push_back(block);
      }
    }
    return blocks;
  }

  const std::vector<GraphCut>& cuts_;
  const PublishedOptions& options_;
  const Objective objective_;
  // By level: the values of ranges on all machines of the level below, by start and end.
  std::vector<std::vector<double>> inner_;
};

void require(bool holds, const char* what, const std::string& got, const char* expected) {
  if (holds) return;
  refuse(what, got, expected);
}

void require_options(const PublishedOptions& options) {
  constexpr int kMostMachines = 4096;
  require(!options.levels.empty(), "levels of machines", "none", "at least one");
  for (const auto& level : options.levels) {
    require(level.machines >= 1 && level.machines <= kMostMachines, "machines of a level",
            std::to_string(level.machines), "from 1 to 4096");
    require(std::isfinite(level.bandwidth) && level.bandwidth > 0, "bandwidth of a level",
            fmt::format("{}", level.bandwidth), "a number of bytes per second > 0");
  }
  const double ratio = options.compression_ratio.value_or(1);
  require(std::isfinite(ratio) && ratio > 0, "compression ratio", fmt::format("{}", ratio),
          "a number > 0");
  const double memory = options.memory_bytes.value_or(0);
  require(std::isfinite(memory) && memory >= 0, "memory of a machine", fmt::format("{}", memory),
          "a number of bytes >= 0");
}

double data_parallel_seconds(const GraphCut& all, const PublishedOptions& options) {
  double seconds = all.seconds;
  int below = 1;
  for (const auto& level : options.levels) {
    const double exchange = 4.0 * (level.machines - 1) * all.parameter_bytes /
                            (level.bandwidth * level.machines) / below;
    seconds =
        (options.model == PublishedModel::sum ? seconds + exchange : std::max(seconds, exchange)) /
        level.machines;
    below = level.machines;
  }
  return seconds;
}

// Adds the blocks that the search leaves out because they only read data to the first stage.
void add_inputs(std::vector<PublishedStage>& stages, const Profile& profile) {
  std::vector<bool> reads(profile.blocks.size(), false);
  const auto readers = profile.readers();
  for (const auto& row : readers) {
    for (const size_t to : row) reads[to] = true;
  }
  auto& first = stages.front().blocks;
  for (size_t block = 0; block < reads.size(); ++block) {
    if (!reads[block] && profile.blocks[block].layer.starts_with("Input")) first.push_back(block);
  }
  std::ranges::sort(first);
}

}  // namespace

PublishedPlan plan_published(const Profile& profile, const PublishedOptions& options) {
  require_options(options);
  const auto cuts =
      find_cuts(profile, kMostCuts, options.levels.size() == 1 ? kSomeCuts : kSomeCutsOfLevels);
  PublishedPlan plan{.cuts = cuts.cuts.size()};
  const auto& all = cuts.cuts.back();
  plan.data_parallel_seconds = data_parallel_seconds(all, options);
  const Solver solver(cuts, options, Objective::seconds);
  plan.seconds_per_minibatch = solver.best();
  plan.feasible = plan.seconds_per_minibatch < kNever;
  double machines = 1;
  for (const auto& level : options.levels) machines *= level.machines;
  const double bound = all.seconds / machines;
  plan.is_optimal = cuts.is_complete || plan.seconds_per_minibatch <= bound + bound * kEqualTimes;
  plan.lower_bound = plan.is_optimal && plan.feasible ? plan.seconds_per_minibatch : bound;
  if (plan.feasible) {
    plan.stages = solver.stages();
    add_inputs(plan.stages, profile);
  } else {
    const double bytes = Solver(cuts, options, Objective::bytes).best();
    if (bytes < kNever) plan.least_memory_bytes = bytes;
  }
  return plan;
}

}  // namespace troika::plan
