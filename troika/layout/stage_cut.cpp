#include "troika/layout/stage_cut.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <numeric>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/layout/errors/refuse.h"
#include "troika/layout/plan_places.h"

namespace troika::layout {

namespace {

// Limits the length of a layout string after its repetitions are expanded.
constexpr size_t kMostRepetitions = 10'000;
constexpr size_t kLongestText = 1 << 20;

// Returns 0 for text that is not a number from 1 to kMostRepetitions.
size_t to_count(std::string_view text) {
  text = trim(text);
  size_t number = 0;
  if (text.empty() || text.size() > 5) return 0;
  for (const char c : text) {
    if (!std::isdigit(static_cast<unsigned char>(c))) return 0;
    number = 10 * number + static_cast<size_t>(c - '0');
  }
  return number <= kMostRepetitions ? number : 0;
}

// Whether an item with this name takes the block.
bool is_of(std::string_view block, std::string_view name) {
  return block.starts_with(name) && (block.size() == name.size() || block[name.size()] == '.');
}

// Reads a layout string without parentheses, item by item.
class CutReader {
 public:
  CutReader(std::string_view text, const std::vector<std::string>& blocks, const std::string& place)
      : text_(text), blocks_(blocks), place_(place) {}

  StageEnds read(const std::string& expanded) {
    for (const auto& stage : split(expanded, '|')) {
      for (const auto& item : split(stage, ',')) {
        if (!trim(item).empty()) take(std::string(trim(item)));
      }
      ends_.push_back(next_);
    }
    if (next_ < blocks_.size()) {
      fail("blocks that are in no stage",
           fmt::format("{} of {}, from {} on", blocks_.size() - next_, blocks_.size(),
                       blocks_[next_]),
           "every block in a stage");
    }
    return std::move(ends_);
  }

  [[noreturn]] void fail(const std::string& what, const std::string& got,
                         const std::string& expected) const {
    refuse(fmt::format("the cut `{}`{} has {}", text_, place_, what), got, expected,
           "blocks in the model's order, `|` between stages, `name*2` for the next two of a name");
  }

 private:
  void take(const std::string& item) {
    const auto star = item.find('*');
    const std::string name(trim(std::string_view(item).substr(0, star)));
    size_t end = next_;
    while (end < blocks_.size() && is_of(blocks_[end], name)) ++end;
    if (end == next_) {
      fail("a name that is not the next block's", name,
           next_ < blocks_.size() ? blocks_[next_] : "the end, since all blocks are in stages");
    }
    if (star != std::string::npos) {
      const size_t wanted = count(item.substr(star + 1));
      if (wanted > end - next_) {
        fail(fmt::format("more blocks of {} than follow", name), std::to_string(wanted),
             std::to_string(end - next_));
      }
      end = next_ + wanted;
    }
    next_ = end;
  }

  size_t count(const std::string& digits) const {
    const auto number = to_count(digits);
    if (number == 0) fail("a repetition that is not a number", "*" + digits, "*1 or more");
    return number;
  }

 private:
  std::string_view text_;
  const std::vector<std::string>& blocks_;
  const std::string& place_;
  size_t next_ = 0;
  StageEnds ends_;
};

// Writes out repeated lists, innermost first.
std::string expand(std::string text, const CutReader& reader) {
  for (size_t close = text.find(')'); close != std::string::npos; close = text.find(')')) {
    const auto open = text.rfind('(', close);
    if (open == std::string::npos) reader.fail("a `)` without `(`", text, "pairs");
    size_t after = close + 1, count = 1;
    if (after < text.size() && text[after] == '*') {
      const auto digits = text.find_first_not_of(" 0123456789", after + 1);
      const auto end = digits == std::string::npos ? text.size() : digits;
      count = to_count(std::string_view(text).substr(after + 1, end - after - 1));
      if (count == 0) {
        reader.fail("a repetition that is not a number", text.substr(after, end - after),
                    "*1 or more");
      }
      after = end;
    }
    const auto list = text.substr(open + 1, close - open - 1);
    std::string repeated;
    if (list.size() * count > kLongestText) {
      reader.fail("too many repetitions", std::to_string(count), "fewer");
    }
    // Repetitions of a list that ends with `|` need no comma between them.
    const bool ends_stage = trim(list).ends_with('|');
    for (size_t i = 0; i < count; ++i) {
      repeated += list;
      if (!ends_stage && i + 1 < count) repeated += ',';
    }
    auto rest = text.substr(after);
    // In `(block|)*2,head`, the comma after a list that ends with `|` is ignored.
    if (ends_stage && trim(rest).starts_with(',')) rest = rest.substr(rest.find(',') + 1);
    text = text.substr(0, open) + repeated + rest;
    if (text.size() > kLongestText)
      reader.fail("too many repetitions", std::to_string(count), "fewer");
  }
  if (text.find('(') != std::string::npos) reader.fail("a `(` without `)`", text, "pairs");
  return text;
}

}  // namespace

StageEnds parse_cut(std::string_view text, const std::vector<std::string>& blocks) {
  return parse_cut(text, blocks, {});
}

StageEnds parse_cut(std::string_view text, const std::vector<std::string>& blocks,
                    const std::string& place) {
  CutReader reader(text, blocks, place);
  return reader.read(expand(std::string(text), reader));
}

std::string cut_text(const StageEnds& ends, const std::vector<std::string>& blocks) {
  std::string text;
  size_t begin = 0;
  for (size_t s = 0; s < ends.size(); ++s) {
    if (s > 0) text += '|';
    for (size_t i = begin; i < ends[s]; ++i) {
      text += (i > begin ? "," : "") + blocks[i];
      // The name alone would take the next block, too.
      if (i + 1 < blocks.size() && is_of(blocks[i + 1], blocks[i])) text += "*1";
    }
    begin = ends[s];
  }
  return text;
}

StageEnds balanced_cut(const std::vector<double>& costs, int stages) {
  std::vector<double> sums(costs.size() + 1, 0);
  std::partial_sum(costs.begin(), costs.end(), sums.begin() + 1);
  return balanced_cut(costs.size(), stages,
                      [&](int, size_t begin, size_t end) { return sums[end] - sums[begin]; });
}

StageEnds balanced_cut(size_t n, int stages,
                       const std::function<double(int stage, size_t begin, size_t end)>& cost) {
  TROIKA_CHECK(stages >= 1, "a cut has stages");
  const size_t most = static_cast<size_t>(stages);
  const size_t p = std::min(n, most);  // stages that have blocks
  constexpr double kNever = std::numeric_limits<double>::infinity();

  // best[s][e] is the least value for the first e blocks in s + 1 stages. `join` combines the value
  // of the earlier stages with the last stage's cost.
  std::vector<std::vector<double>> best;
  std::vector<std::vector<size_t>> begins;
  const auto solve = [&](const auto& join) {
    best.assign(p, std::vector<double>(n + 1, kNever));
    begins.assign(p, std::vector<size_t>(n + 1, 0));
    for (size_t s = 0; s < p; ++s) {
      for (size_t e = s + 1; e <= n; ++e) {
        for (size_t b = s; b < (s == 0 ? 1 : e); ++b) {
          const double rest = s == 0 ? 0 : best[s - 1][b];
          const double whole = join(rest, cost(static_cast<int>(s), b, e));
          if (whole < best[s][e]) {
            best[s][e] = whole;
            begins[s][e] = b;
          }
        }
      }
    }
  };
  StageEnds ends(most, n);
  if (p == 0) return ends;
  solve([](double rest, double last) { return std::max(rest, last); });
  const double bound = best[p - 1][n] * (1 + 1e-12);
  solve([&](double rest, double last) { return last > bound ? kNever : rest + last * last; });
  for (size_t s = p; s-- > 1;) ends[s - 1] = begins[s][ends[s]];
  return ends;
}

}  // namespace troika::layout
