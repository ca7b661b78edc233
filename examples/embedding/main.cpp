// An embedding model on a parameter server: users and items have vectors, and the probability that
// a user likes an item is sigmoid(user . item). The data are generated: ids are hashes, so they are
// any 64-bit numbers, and few of them are frequent. The tables admit an id with its second step,
// and keep the ids that were used most recently.
//
//   troika launch --servers 2 --workers 2 embedding --steps=300 --rows=20000
//
// The workers share the samples of each step. Worker 0 prints the mean loss of its samples in the
// first and in the last tenth of the steps, and the loss that the true vectors have on the latter.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_map>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/random.h"
#include "troika/base/text.h"
#include "troika/server/scheduler.h"
#include "troika/server/world.h"

namespace {

using namespace troika;
using server::Key;

constexpr uint32_t kWidth = 8;
constexpr int64_t kBatch = 256;    // samples of a step, of all workers together
constexpr uint64_t kUsers = 2000;  // that occur
constexpr uint64_t kItems = 500;

Deadline soon() {
  return Deadline::after(std::chrono::minutes(10));
}

struct Options {
  int64_t steps = 300;
  int64_t rows = 20'000;  // at most, of each table
  double rate = 0.2;
};

struct Sample {
  Key user = 0;
  Key item = 0;
  double label = 0;      // 1: likes it
  double true_loss = 0;  // of the true probability
};

// Element `index` of the true vector of an id, in [-1.5, 1.5).
double truth(Key id, uint32_t index) {
  return 3 * static_cast<double>(mix(id, index, 17) >> 11) * 0x1p-53 - 1.5;
}

double loss_of(double score, double label) {
  const double margin = label > 0 ? score : -score;
  return std::max(0.0, -margin) + std::log1p(std::exp(-std::fabs(margin)));
}

// The id of rank r occurs with a frequency of about 1 / r.
Key draw_id(Random& random, uint64_t count, uint64_t kind) {
  const double power = random.uniform() * std::log(static_cast<double>(count));
  return mix(static_cast<uint64_t>(std::exp(power)), kind);
}

Sample sample_of(int64_t step, int64_t number) {
  Random random(mix(static_cast<uint64_t>(step), static_cast<uint64_t>(number)));
  Sample sample{.user = draw_id(random, kUsers, 1), .item = draw_id(random, kItems, 2)};
  double score = 0;
  for (uint32_t i = 0; i < kWidth; ++i) score += truth(sample.user, i) * truth(sample.item, i);
  sample.label = random.uniform() < 1 / (1 + std::exp(-score)) ? 1 : 0;
  sample.true_loss = loss_of(score, sample.label);
  return sample;
}

// The vectors of some ids, and their gradients.
struct Vectors {
  std::vector<Key> ids;
  std::unordered_map<Key, size_t> places;
  std::vector<double> gradient;

  explicit Vectors(std::vector<Key> all) : ids(std::move(all)) {
    std::ranges::sort(ids);
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    for (size_t i = 0; i < ids.size(); ++i) places[ids[i]] = i * kWidth;
    gradient.resize(ids.size() * kWidth);
  }
};

struct Losses {
  double sum = 0;
  double true_sum = 0;
  int64_t samples = 0;

  double mean() const { return sum / static_cast<double>(samples); }
  double true_mean() const { return true_sum / static_cast<double>(samples); }
};

void add_step(server::Worker& worker, const std::vector<Sample>& samples, Losses& losses) {
  std::vector<Key> user_ids, item_ids;
  for (const auto& sample : samples) {
    user_ids.push_back(sample.user);
    item_ids.push_back(sample.item);
  }
  Vectors users(user_ids), items(item_ids);
  const auto pulled_users = worker.pull("users", users.ids);
  const auto pulled_items = worker.pull("items", items.ids);
  pulled_users.wait(soon());
  pulled_items.wait(soon());
  for (const auto& sample : samples) {
    const auto user = pulled_users.values<double>().subspan(users.places.at(sample.user), kWidth);
    const auto item = pulled_items.values<double>().subspan(items.places.at(sample.item), kWidth);
    double score = 0;
    for (uint32_t i = 0; i < kWidth; ++i) score += user[i] * item[i];
    losses.sum += loss_of(score, sample.label);
    losses.true_sum += sample.true_loss;
    ++losses.samples;
    const double slope = 1 / (1 + std::exp(-score)) - sample.label;
    for (uint32_t i = 0; i < kWidth; ++i) {
      users.gradient[users.places.at(sample.user) + i] += slope * item[i];
      items.gradient[items.places.at(sample.item) + i] += slope * user[i];
    }
  }
  worker.push("users", users.ids, users.gradient);
  worker.push("items", items.ids, items.gradient);
}

void train(server::Worker& worker, const server::WorldOptions& world, const Options& options) {
  worker.set_filters("users", server::parse_filters("zlib"), server::parse_filters("zlib"));
  Losses first, last, between;
  for (int64_t step = 0; step + 1 < options.steps;) {
    worker.begin_step().wait(soon());
    step = worker.step();
    std::vector<Sample> samples;
    for (int64_t i = world.index; i < kBatch; i += world.workers) {
      samples.push_back(sample_of(step, i));
    }
    auto& losses = step < options.steps / 10                    ? first
                   : step >= options.steps - options.steps / 10 ? last
                                                                : between;
    add_step(worker, samples, losses);
    worker.end_step();
  }
  if (world.index != 0) return;
  fmt::print("first {:.6f}\nlast {:.6f}\ntruth {:.6f}\n", first.mean(), last.mean(),
             last.true_mean());
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto equals = word.find('=');
    const auto value = parse_double(equals == std::string::npos ? "" : word.substr(equals + 1));
    const auto name = word.substr(0, equals);
    if (value && name == "--steps" && *value >= 10) {
      options.steps = static_cast<int64_t>(*value);
    } else if (value && name == "--rows" && *value >= 1) {
      options.rows = static_cast<int64_t>(*value);
    } else if (value && name == "--rate" && *value > 0) {
      options.rate = *value;
    } else {
      throw Error("embedding", ErrorKind::usage,
                  {.what = "an argument",
                   .got = word,
                   .expected = "--steps=N (at least 10), --rows=N or --rate=X"});
    }
  }
  return options;
}

int run(int argc, char** argv) {
  const auto options = parse(argc, argv);
  const auto found = server::find_world();
  server::WorldParts parts;
  for (const char* name : {"users", "items"}) {
    parts.scheduler.tables.push_back(
        {.name = name,
         .type = server::ValueType::float64,
         .width = kWidth,
         .spread = 0.3,
         .seed = 1,
         .admit = 2,
         .rows = static_cast<uint64_t>(options.rows),
         .application = server::Application::per_step,
         .update = server::parse_update(fmt::format("adagrad rate={}", options.rate))});
  }
  parts.scheduler.ranges = 16;
  server::World world(found, parts);
  if (!world.is_worker()) {
    world.serve(soon());
    return 0;
  }
  train(world.worker(soon()), found, options);
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
