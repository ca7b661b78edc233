// The example of logistic regression with an L1 penalty, compared with a solver of its own.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <sstream>

#include "tests/server/child.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/base/text.h"

namespace troika::server {
namespace {

constexpr double kPenalty = 0.02;

struct Problem {
  std::vector<std::vector<size_t>> rows;  // indices of features with value 1
  std::vector<double> labels;
  size_t features = 0;
};

Problem read_problem(const std::string& text) {
  Problem problem;
  for (const auto& line : split(trim(text), '\n')) {
    const auto words = split(line, ' ');
    problem.labels.push_back(*parse_double(words[0]));
    auto& row = problem.rows.emplace_back();
    for (size_t i = 1; i < words.size(); ++i) {
      row.push_back(static_cast<size_t>(*parse_int(words[i].substr(0, words[i].find(':')))));
      problem.features = std::max(problem.features, row.back() + 1);
    }
  }
  return problem;
}

double margin(const Problem& problem, size_t row, const std::vector<double>& w) {
  double sum = 0;
  for (const size_t feature : problem.rows[row]) sum += w[feature];
  return sum * problem.labels[row];
}

double objective(const Problem& problem, const std::vector<double>& w) {
  double loss = 0, norm = 0;
  for (size_t row = 0; row < problem.rows.size(); ++row) {
    loss += std::log1p(std::exp(-margin(problem, row, w)));
  }
  for (const double weight : w) norm += std::fabs(weight);
  return loss / static_cast<double>(problem.rows.size()) + kPenalty * norm;
}

// FISTA (Beck and Teboulle, SIAM J. Imaging Sciences 2009, section 4).
double least_objective(const Problem& problem) {
  const auto count = static_cast<double>(problem.rows.size());
  std::vector<double> w(problem.features), z = w;
  double t = 1;
  constexpr double kRate = 0.5;
  for (int step = 0; step < 3000; ++step) {
    std::vector<double> next = z;
    for (size_t row = 0; row < problem.rows.size(); ++row) {
      const double slope = -problem.labels[row] / (1 + std::exp(margin(problem, row, z))) / count;
      for (const size_t feature : problem.rows[row]) next[feature] -= kRate * slope;
    }
    for (double& weight : next) {
      weight = std::copysign(std::max(std::fabs(weight) - kRate * kPenalty, 0.0), weight);
    }
    const double t_next = (1 + std::sqrt(1 + 4 * t * t)) / 2;
    for (size_t i = 0; i < w.size(); ++i) z[i] = next[i] + (t - 1) / t_next * (next[i] - w[i]);
    w = next;
    t = t_next;
  }
  return objective(problem, w);
}

// Returns the number after a word at the beginning of a line.
double number_after(const std::string& text, const std::string& word) {
  std::istringstream in(text.substr(text.find(word) + word.size()));
  double number = NAN;
  in >> number;
  return number;
}

TEST(ServerExamples, L1LogisticRegressionFindsTheOptimum) {
  const TemporaryFolder folder;
  const auto file = (folder / "data.svm").string();
  Child generator(TROIKA_L1_LOGISTIC, {}, {"--generate", "200", "300", "1"});
  ASSERT_EQ(generator.end(), 0);
  write_file_atomically(file, generator.text());
  const double least = least_objective(read_problem(generator.text()));
  std::vector<std::string> words{file, fmt::format("--l1={}", kPenalty), "--rate=1", "--steps=600"};
  Child alone(TROIKA_L1_LOGISTIC, {}, words);
  ASSERT_EQ(alone.end(), 0);
  EXPECT_NEAR(number_after(alone.text(), "objective"), least, 1e-6 * least) << alone.text();

  const auto run_in_processes = [&] {
    Processes processes(TROIKA_L1_LOGISTIC, 2, 2, words);
    for (const char* name : {"worker0", "worker1", "server0", "server1", "scheduler0"}) {
      EXPECT_EQ(processes[name].end(), 0) << name;
    }
    EXPECT_NEAR(number_after(processes["worker0"].text(), "objective"), least, 1e-6 * least)
        << processes["worker0"].text();
  };
  run_in_processes();
  words.push_back("--delay=3");
  run_in_processes();
  words.pop_back();

  words.push_back("--filters");
  Child filtered(TROIKA_L1_LOGISTIC, {}, words);
  ASSERT_EQ(filtered.end(), 0);
  EXPECT_NEAR(number_after(filtered.text(), "objective"), least, 1e-6 * least) << filtered.text();
  EXPECT_LT(number_after(filtered.text(), "pushed"), 0.6 * number_after(alone.text(), "pushed"))
      << filtered.text();

  run_in_processes();
  words.push_back("--delay=3");
  run_in_processes();
}

TEST(ServerExamples, L1LogisticRegressionRefusesBadData) {
  const TemporaryFolder folder;
  const auto file = (folder / "data.svm").string();
  for (const char* text : {"", "1 0:1", "1 a:1", "yes 1:1", "1 3"}) {
    write_file_atomically(file, text);
    Child child(TROIKA_L1_LOGISTIC, {}, {file});
    EXPECT_EQ(child.end(), 2) << text;
  }
  Child missing(TROIKA_L1_LOGISTIC, {}, {(folder / "other").string()});
  EXPECT_EQ(missing.end(), 2);
}

}  // namespace
}  // namespace troika::server
