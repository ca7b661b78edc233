#include "troika/observe/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "troika/base/text.h"

namespace troika::observe {

namespace {

constexpr Clock::duration kRedraw = std::chrono::milliseconds(100);
constexpr Clock::duration kWindow = std::chrono::seconds(10);
constexpr double kLossMemory = 0.95;  // of the running mean, per loss
constexpr const char* kEraseRest = "\x1b[K";

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool is_live() {
  const std::string_view forced = environment("TROIKA_TTY");
  if (!forced.empty()) return forced == "1";
  return ::isatty(STDERR_FILENO) && environment("TERM") != "dumb";
}

int terminal_columns() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const auto columns = parse_int(environment("COLUMNS"));
  return columns && *columns > 0 && *columns < 10'000 ? static_cast<int>(*columns) : 80;
}

// Gives up if a write fails: progress that cannot be shown must not stop the run.
void write_to_standard_error(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

double seconds_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

}  // namespace

ProgressOutput ProgressOutput::standard_error() {
  return {.live = is_live(),
          .color = environment("NO_COLOR").empty(),
          .columns = terminal_columns,
          .write = write_to_standard_error};
}

ProgressBar::ProgressBar(ProgressOutput output) : output_(std::move(output)) {}

ProgressBar::~ProgressBar() {
  if (on_screen_) output_.write("\n");
}

void ProgressBar::start(std::string label, int64_t total, int64_t done) {
  const auto now = output_.now();
  label_ = std::move(label);
  total_ = total;
  first_ = latest_ = {now, done, 0};
  marks_.assign(1, first_);
  next_show_ = now + output_.interval;
  if (output_.live) show(now);
}

void ProgressBar::add_loss(double loss) {
  loss_sum_ = kLossMemory * loss_sum_ + loss;
  loss_weight_ = kLossMemory * loss_weight_ + 1;
}

void ProgressBar::advance(int64_t batches, int64_t samples) {
  latest_ = {output_.now(), latest_.done + batches, latest_.samples + samples};
  if (latest_.at >= next_show_) show(latest_.at);
}

void ProgressBar::show_metrics(const std::vector<std::pair<std::string, double>>& metrics) {
  for (const auto& [name, value] : metrics) {
    const auto found = std::find_if(metrics_.begin(), metrics_.end(),
                                    [&](const auto& known) { return known.first == name; });
    if (found == metrics_.end()) {
      metrics_.emplace_back(name, value);
    } else {
      found->second = value;
    }
  }
}

void ProgressBar::show(Clock::time_point now) {
  marks_.push_back(latest_);
  while (marks_.size() > 2 && marks_[1].at <= now - kWindow) marks_.pop_front();
  const Mark& oldest = marks_.front();
  ProgressState shown = state(oldest, latest_);
  if (total_ > 0) {
    const double seconds_per_batch =
        seconds_between(oldest.at, now) / static_cast<double>(latest_.done - oldest.done);
    shown.seconds_left = static_cast<double>(total_ - latest_.done) * seconds_per_batch;
  } else {
    shown.seconds = seconds_between(first_.at, now);
  }
  if (output_.live) {
    draw(shown);
    on_screen_ = true;
    next_show_ = now + kRedraw;
  } else {
    output_.write(plain_line(shown) + "\n");
    next_show_ = now + output_.interval;
  }
}

void ProgressBar::finish() {
  latest_.at = output_.now();
  ProgressState shown = state(first_, latest_);
  shown.seconds = seconds_between(first_.at, latest_.at);
  if (output_.live) {
    draw(shown);
    output_.write("\n");
    on_screen_ = false;
  } else {
    output_.write(plain_line(shown) + "\n");
  }
}

void ProgressBar::clear() {
  if (!on_screen_) return;
  output_.write(fmt::format("\r{}", kEraseRest));
  on_screen_ = false;
  next_show_ = {};
}

// Writes once over the old line and erases only the rest, which avoids flicker.
void ProgressBar::draw(const ProgressState& shown) const {
  const std::string line = live_line(shown, output_.columns(), output_.color);
  output_.write(fmt::format("\r{}{}", line, kEraseRest));
}

ProgressState ProgressBar::state(const Mark& from, const Mark& to) const {
  const double seconds = seconds_between(from.at, to.at);
  return {.label = label_,
          .done = to.done,
          .total = total_,
          .samples_per_second = static_cast<double>(to.samples - from.samples) / seconds,
          .has_loss = loss_weight_ > 0,
          .loss = loss_sum_ / loss_weight_,
          .metrics = metrics_};
}

}  // namespace troika::observe
