// Logistic regression with an L1 penalty on a parameter server: minimises
//
//   F(w) = 1/N sum_i log(1 + exp(-y_i w.x_i)) + l1 ||w||_1
//
// by proximal gradient steps. The rows of a file in libsvm's format (`label index:value ...`) are
// dealt out to the workers; the weights are on the servers, one for each index that occurs.
//
//   l1_logistic --generate ROWS FEATURES SEED > data.svm
//   troika launch --servers 2 --workers 2 l1_logistic data.svm --l1=0.001 --filters
//
// Worker 0 prints the objective. With `--filters`, workers leave out features whose weight stays
// zero (kkt), send each list of indices once (cache_keys) and compress messages (zlib);
// `--filters=kkt,cache_keys` uses only these two. With kkt, most steps pull and push only the
// features whose weights were not zero, and each kPeriod-th step pushes all gradients, so that the
// servers decide which other weights stay zero (the Karush-Kuhn-Tucker conditions).
// `--delay=T` lets workers be T steps ahead of the slowest one. With `--report=K`, worker 0 also
// prints the objective and the time of every K-th step.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/base/random.h"
#include "troika/base/text.h"
#include "troika/server/scheduler.h"
#include "troika/server/world.h"

namespace {

using namespace troika;
using server::Key;

[[noreturn]] void refuse(const std::string& what, const std::string& got,
                         const std::string& expected) {
  throw Error("l1_logistic", ErrorKind::usage, {.what = what, .got = got, .expected = expected});
}

Deadline soon() {
  return Deadline::after(std::chrono::minutes(10));
}

struct Options {
  std::string file;
  double l1 = 0.001;
  double rate = 0;  // 0: the largest one that is safe
  int64_t steps = 500;
  int64_t delay = 0;
  int64_t report = 0;                // 0: only after the last step
  std::vector<std::string> filters;  // of kkt, cache_keys and zlib
};

// Worker 0 knows this of a step before all workers have finished it.
struct Report {
  int64_t step = 0;
  double seconds = 0;  // since worker 0 began its first step
  double norm = 0;     // of the weights, L1
};

// The rows of one worker, with positions in `keys` instead of indices.
struct Rows {
  std::vector<Key> keys;        // ascending
  std::vector<Key> all_keys;    // of all workers
  std::vector<size_t> begins;   // of each row in `columns`, and the end
  std::vector<size_t> columns;  // positions in `keys`
  std::vector<double> values;
  std::vector<double> labels;  // 1 or -1
  int64_t all_rows = 0;        // of all workers
  double longest = 0;          // the largest squared norm of a row of the file
};

double number(const std::string& text, const std::string& what) {
  const auto value = parse_double(text);
  if (!value) refuse(what, text, "a number");
  return *value;
}

Rows read_rows(const std::string& file, int worker, int workers) {
  std::ifstream in(file);
  if (!in) refuse("the data file", file, "a file that can be read");
  Rows rows;
  rows.begins.push_back(0);
  std::vector<Key> indices;
  std::string line;
  while (std::getline(in, line)) {
    const auto text = std::string(trim(line.substr(0, line.find('#'))));
    if (text.empty()) continue;
    std::istringstream words(text);
    std::string word;
    words >> word;
    const double label = number(word, "a label");
    const bool is_mine = rows.all_rows++ % workers == worker;
    if (is_mine) rows.labels.push_back(label > 0 ? 1 : -1);
    double norm = 0;
    while (words >> word) {
      const auto colon = word.find(':');
      const auto index = parse_int(word.substr(0, colon));
      if (colon == std::string::npos || !index || *index < 1) {
        refuse("a feature of row " + std::to_string(rows.all_rows), word, "INDEX:VALUE");
      }
      const double value = number(word.substr(colon + 1), "a value");
      norm += value * value;
      rows.all_keys.push_back(static_cast<Key>(*index));
      if (!is_mine) continue;
      indices.push_back(static_cast<Key>(*index));
      rows.values.push_back(value);
    }
    rows.longest = std::max(rows.longest, norm);
    if (is_mine) rows.begins.push_back(indices.size());
  }
  if (rows.all_rows == 0) refuse("the data file " + file, "no rows", "at least one");
  rows.keys = indices;
  for (auto* const keys : {&rows.keys, &rows.all_keys}) {
    std::ranges::sort(*keys);
    keys->erase(std::unique(keys->begin(), keys->end()), keys->end());
  }
  for (const Key index : indices) {
    rows.columns.push_back(
        static_cast<size_t>(std::ranges::lower_bound(rows.keys, index) - rows.keys.begin()));
  }
  return rows;
}

// Adds the gradient of these rows' part of the mean to `gradient`, and returns their loss.
double add_gradient(const Rows& rows, std::span<const double> w, std::vector<double>& gradient) {
  double loss = 0;
  const auto count = static_cast<double>(rows.all_rows);
  for (size_t row = 0; row < rows.labels.size(); ++row) {
    double margin = 0;
    for (size_t i = rows.begins[row]; i < rows.begins[row + 1]; ++i) {
      margin += w[rows.columns[i]] * rows.values[i];
    }
    margin *= rows.labels[row];
    // log(1 + exp(-m)) without overflow.
    loss += (std::max(0.0, -margin) + std::log1p(std::exp(-std::fabs(margin)))) / count;
    const double slope = -rows.labels[row] / (1 + std::exp(margin)) / count;
    for (size_t i = rows.begins[row]; i < rows.begins[row + 1]; ++i) {
      gradient[rows.columns[i]] += slope * rows.values[i];
    }
  }
  return loss;
}

// Rows with 20 features each, and labels that 50 of the features decide.
void generate(int64_t rows, uint64_t features, uint64_t seed) {
  Random random(seed);
  std::vector<double> truth(50);
  for (double& weight : truth) weight = 3 * random.normal();
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<Key> indices;
    while (indices.size() < std::min<uint64_t>(20, features)) {
      // Half of the features are among the first 100.
      const Key index =
          1 + random.below(random.below(2) == 0 ? std::min<uint64_t>(100, features) : features);
      if (std::ranges::find(indices, index) == indices.end()) indices.push_back(index);
    }
    std::ranges::sort(indices);
    double margin = 0;
    for (const Key index : indices) margin += index <= truth.size() ? truth[index - 1] : 0;
    std::string line = random.uniform() < 1 / (1 + std::exp(-margin)) ? "1" : "-1";
    for (const Key index : indices) line += fmt::format(" {}:1", index);
    std::puts(line.c_str());
  }
}

// Returns the first step whose pulls have the gradients of all workers' training steps: a worker
// begins step t when all have finished step t - delay - 1. In this step the workers compute the
// loss of the final weights.
int64_t step_of_loss(const Options& options) {
  return options.steps + options.delay;
}

double l1_norm(const server::Handle& weights) {
  weights.wait(soon());
  double norm = 0;
  for (const double weight : weights.values<double>()) norm += std::fabs(weight);
  return norm;
}

double loss_at(server::Worker& worker, int64_t step) {
  const auto loss = worker.pull("loss", server::KeySpan{static_cast<Key>(step), 1});
  loss.wait(soon());
  return loss.values<double>()[0];
}

// Decides which features a worker pulls and pushes in a step. Without selection, these are all of
// its rows; with it, only the active ones, except that
//
// - the first delay + 1 steps of a period push all, so that at least in one step the servers have
//   the whole gradient of each weight when they decide whether it stays zero;
// - the next step, which sees the result, pulls all. Weights that are not zero become active, and
//   remain so.
class Selection {
 public:
  static constexpr int64_t kPeriod = 10;

  Selection(const Rows& rows, bool is_selecting, int64_t delay)
      : rows_(rows), is_selecting_(is_selecting), delay_(delay), is_active_(rows.keys.size()) {}

  bool pushes_all(int64_t step) const { return !is_selecting_ || place_of(step) <= delay_; }
  bool pulls_all(int64_t step) const {
    return !is_selecting_ || step == 0 || place_of(step) == delay_ + 1;
  }
  const std::vector<Key>& keys(bool is_all) const { return is_all ? rows_.keys : keys_; }

  // Takes the weights of all features.
  void add_active(std::span<const double> w) {
    keys_.clear();
    positions_.clear();
    for (size_t i = 0; i < w.size(); ++i) {
      is_active_[i] = is_active_[i] || w[i] != 0;
      if (!is_active_[i]) continue;
      keys_.push_back(rows_.keys[i]);
      positions_.push_back(i);
    }
  }
  // Returns the weights of all features, of which the inactive ones are zero.
  std::vector<double> widen(std::span<const double> w) const {
    std::vector<double> all(rows_.keys.size());
    for (size_t i = 0; i < w.size(); ++i) all[positions_[i]] = w[i];
    return all;
  }
  // The inverse.
  std::vector<double> narrow(std::span<const double> all) const {
    std::vector<double> values;
    for (const size_t position : positions_) values.push_back(all[position]);
    return values;
  }

 private:
  int64_t place_of(int64_t step) const { return step % (kPeriod * (delay_ + 1)); }

  const Rows& rows_;
  const bool is_selecting_;
  const int64_t delay_;
  std::vector<bool> is_active_;    // by position in Rows::keys
  std::vector<Key> keys_;          // of active features, ascending
  std::vector<size_t> positions_;  // of keys_ in Rows::keys
};

// Prints the objective at the weights after the last step, and the traffic of this worker, whose
// pushes had the gradients of `pushed` weights.
void show_result(server::Worker& worker, const Options& options, const Rows& rows,
                 const std::vector<Report>& reports, size_t pushed) {
  for (const auto& [step, seconds, norm] : reports) {
    fmt::print("step {} after {:.3f} s: objective {:.12g}\n", step, seconds,
               loss_at(worker, step) + options.l1 * norm);
  }
  const auto weights = worker.pull("w", rows.all_keys);
  const double norm = l1_norm(weights);
  const auto traffic = worker.traffic();
  const auto size = [](uint64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  fmt::print("objective {:.12g}\n", loss_at(worker, step_of_loss(options)) + options.l1 * norm);
  fmt::print("weights   {} of {} are not zero\n",
             std::ranges::count_if(weights.values<double>(), [](double w) { return w != 0; }),
             rows.all_keys.size());
  fmt::print("pushed    {} of {} weights' gradients\n", pushed,
             rows.keys.size() * static_cast<size_t>(options.steps));
  fmt::print("sent      {}, without filters' encodings {}\n", size(traffic.request_bytes),
             size(traffic.plain_request_bytes));
  fmt::print("received  {}, without filters' encodings {}\n", size(traffic.answer_bytes),
             size(traffic.plain_answer_bytes));
}

void train(server::Worker& worker, const server::WorldOptions& world, const Options& options,
           const Rows& rows) {
  auto names = options.filters;
  const bool is_selecting = std::erase(names, "kkt") > 0;
  const auto filters = server::parse_filters(fmt::format("{}", fmt::join(names, ", ")));
  worker.set_filters("w", filters, filters);
  Selection selection(rows, is_selecting, options.delay);
  std::vector<Report> reports;
  std::optional<Stopwatch> watch;
  size_t pushed = 0;
  const int64_t loss_step = step_of_loss(options);
  // That loss is complete when all workers have finished its step.
  for (int64_t step = -1; step <= loss_step + options.delay;) {
    worker.begin_step().wait(soon());
    step = worker.step();
    if (!watch) watch.emplace();
    if (step >= options.steps && step != loss_step) {
      worker.end_step();
      continue;
    }
    const bool pulls_all = selection.pulls_all(step) || step == loss_step;
    const auto pull = worker.pull("w", selection.keys(pulls_all));
    pull.wait(soon());
    const auto pulled = pull.values<double>();
    const auto w =
        pulls_all ? std::vector<double>(pulled.begin(), pulled.end()) : selection.widen(pulled);
    if (is_selecting && pulls_all) selection.add_active(w);
    std::vector<double> gradient(rows.keys.size());
    const double loss = add_gradient(rows, w, gradient);
    if (world.index == 0 && options.report > 0 && step % options.report == 0) {
      reports.push_back({step, watch->seconds(), l1_norm(worker.pull("w", rows.all_keys))});
    }
    if (step < options.steps) {
      const bool pushes_all = selection.pushes_all(step);
      const auto& keys = selection.keys(pushes_all);
      worker.push("w", keys, pushes_all ? gradient : selection.narrow(gradient));
      pushed += keys.size();
    }
    worker.push("loss", server::KeySpan{static_cast<Key>(step), 1}, std::vector<double>{loss});
    worker.end_step();
  }
  if (world.index == 0) show_result(worker, options, rows, reports, pushed);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto equals = word.find('=');
    const auto name = word.substr(0, equals);
    const auto value = equals == std::string::npos ? "" : word.substr(equals + 1);
    if (name == "--l1") {
      options.l1 = number(value, name);
    } else if (name == "--rate") {
      options.rate = number(value, name);
    } else if (name == "--steps") {
      options.steps = static_cast<int64_t>(number(value, name));
    } else if (name == "--delay") {
      options.delay = static_cast<int64_t>(number(value, name));
    } else if (name == "--report") {
      options.report = static_cast<int64_t>(number(value, name));
    } else if (name == "--filters") {
      options.filters = split(equals == std::string::npos ? "kkt,cache_keys,zlib" : value, ',');
    } else if (options.file.empty() && !word.starts_with("--")) {
      options.file = word;
    } else {
      refuse("an argument", word,
             "FILE, --l1=, --rate=, --steps=, --delay=, --report= or --filters=");
    }
  }
  if (options.file.empty()) refuse("the data file", "none", "a file in libsvm's format");
  if (options.steps < 1) refuse("--steps", std::to_string(options.steps), "at least 1");
  if (options.delay < 0) refuse("--delay", std::to_string(options.delay), "at least 0");
  if (options.report < 0) refuse("--report", std::to_string(options.report), "at least 0");
  for (const auto& filter : options.filters) {
    if (filter != "kkt" && filter != "cache_keys" && filter != "zlib") {
      refuse("a filter", filter, "kkt, cache_keys or zlib");
    }
  }
  return options;
}

int run(int argc, char** argv) {
  if (argc == 5 && std::string_view(argv[1]) == "--generate") {
    generate(static_cast<int64_t>(number(argv[2], "ROWS")),
             static_cast<uint64_t>(number(argv[3], "FEATURES")),
             static_cast<uint64_t>(number(argv[4], "SEED")));
    return 0;
  }
  const auto options = parse(argc, argv);
  const auto found = server::find_world();
  const auto rows = read_rows(options.file, found.index, std::max(found.workers, 1));
  // The mean's second derivative is at most longest / 4 in every direction.
  const double rate = options.rate > 0 ? options.rate : 4 / std::max(rows.longest, 1e-12);
  server::WorldParts parts;
  parts.scheduler.tables = {
      {.name = "w",
       .type = server::ValueType::float64,
       .application = server::Application::per_step,
       .update = server::parse_update(fmt::format("proximal_l1 rate={} l1={}", rate, options.l1))},
      {.name = "loss",
       .type = server::ValueType::float64,
       .keys = static_cast<uint64_t>(step_of_loss(options)) + 1,
       .application = server::Application::per_step}};
  parts.scheduler.ranges = 8;
  parts.scheduler.consistency = server::bounded_delay(options.delay);
  server::World world(found, parts);
  if (!world.is_worker()) {
    world.serve(soon());
    return 0;
  }
  train(world.worker(soon()), found, options, rows);
  world.leave(soon());
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  return run(argc, argv);
} catch (const std::exception& error) {
  fmt::print(stderr, "error: {}\n", error.what());
  return exit_code(error);
}
