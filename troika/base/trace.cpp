#include "troika/base/trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "troika/base/error.h"

namespace troika {

namespace {

using nlohmann::ordered_json;

double microseconds(Clock::duration span) {
  return std::chrono::duration<double, std::micro>(span).count();
}

// Names may contain invalid UTF-8, which is replaced.
std::string text_of(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

// Returns the track's number. Tracks are numbered from 1 by first appearance.
int number_of(std::vector<std::string>& tracks, const std::string& track) {
  auto found = std::find(tracks.begin(), tracks.end(), track);
  if (found == tracks.end()) found = tracks.insert(found, track);
  return static_cast<int>(found - tracks.begin()) + 1;
}

ordered_json metadata(const char* name, int rank, int track, ordered_json args) {
  return {{"ph", "M"}, {"name", name}, {"pid", rank}, {"tid", track}, {"args", std::move(args)}};
}

ordered_json args_of(const TraceEvent& event) {
  ordered_json args = ordered_json::object();
  if (event.step >= 0) args["step"] = event.step;
  if (event.bucket >= 0) args["bucket"] = event.bucket;
  if (event.bytes >= 0) args["bytes"] = event.bytes;
  return args;
}

// Orders by start; for equal starts, the longer span comes first.
bool comes_first(const TraceEvent& a, const TraceEvent& b) {
  if (a.start != b.start) return a.start < b.start;
  return a.end.value_or(a.start) > b.end.value_or(b.start);
}

}  // namespace

void Trace::begin_step(int64_t step) {
  const std::lock_guard lock(mutex_);
  step_ = step;
}

void Trace::add(TraceEvent event) {
  const std::lock_guard lock(mutex_);
  if (step_ >= steps_) return;
  if (event.step < 0) event.step = step_;
  events_.push_back(std::move(event));
}

std::vector<TraceEvent> Trace::events() const {
  const std::lock_guard lock(mutex_);
  return events_;
}

TraceSpan::TraceSpan(Trace* trace, const char* track, const char* name, int64_t bucket,
                     int64_t bytes)
    : trace_(trace),
      track_(track),
      name_(name),
      bucket_(bucket),
      bytes_(bytes),
      start_(trace ? Clock::now() : Clock::time_point()) {}

TraceSpan::~TraceSpan() {
  if (!trace_) return;
  trace_->add({.track = track_,
               .name = name_,
               .start = start_,
               .end = Clock::now(),
               .bucket = bucket_,
               .bytes = bytes_});
}

ClockOffset clock_offset(const std::vector<ClockExchange>& exchanges) {
  TROIKA_CHECK(!exchanges.empty(), "an offset needs an exchange");
  const auto trip = [](const ClockExchange& e) { return e.received - e.sent; };
  const auto best = *std::ranges::min_element(exchanges, {}, trip);
  const auto middle = best.sent + trip(best) / 2;
  // The error is rounded up because the middle was rounded down.
  return {middle, best.there - middle, (trip(best) + Clock::duration(1)) / 2};
}

Clock::time_point AlignedClock::operator()(Clock::time_point here) const {
  const auto between = last_.at - first_.at;
  if (between <= Clock::duration(0)) return here + first_.offset;
  const double share = std::clamp(
      static_cast<double>((here - first_.at).count()) / static_cast<double>(between.count()), 0.0,
      1.0);
  const double drift = static_cast<double>((last_.offset - first_.offset).count()) * share;
  return here + first_.offset + Clock::duration(static_cast<Clock::rep>(drift));
}

std::string trace_elements(const RankTrace& rank, const AlignedClock& clock,
                           Clock::time_point origin) {
  auto events = rank.events;
  std::ranges::stable_sort(events, comes_first);
  std::vector<std::string> tracks;
  std::string text = text_of(metadata("process_name", rank.rank, 0, {{"name", rank.name}}));
  text +=
      ",\n" + text_of(metadata("process_sort_index", rank.rank, 0, {{"sort_index", rank.rank}}));
  for (const auto& event : events) {
    const int track = number_of(tracks, event.track);
    const double start = microseconds(clock(event.start) - origin);
    ordered_json json = {{"ph", event.end ? "X" : "i"},
                         {"name", event.name},
                         {"pid", rank.rank},
                         {"tid", track},
                         {"ts", start},
                         {"args", args_of(event)}};
    if (event.end) {
      json["dur"] = microseconds(clock(*event.end) - clock(event.start));
    } else {
      json["s"] = "t";
    }
    text += ",\n" + text_of(json);
    if (event.bucket < 0) continue;
    ordered_json flow = {{"ph", event.end ? "f" : "s"},
                         {"name", "bucket"},
                         {"cat", "bucket"},
                         {"pid", rank.rank},
                         {"tid", track},
                         {"ts", start},
                         {"id", std::to_string(rank.rank) + "." + std::to_string(event.step) + "." +
                                    std::to_string(event.bucket)}};
    if (event.end) flow["bp"] = "e";
    text += ",\n" + text_of(flow);
  }
  for (size_t t = 0; t < tracks.size(); ++t) {
    const int track = static_cast<int>(t) + 1;
    text += ",\n" + text_of(metadata("thread_name", rank.rank, track, {{"name", tracks[t]}}));
    text +=
        ",\n" + text_of(metadata("thread_sort_index", rank.rank, track, {{"sort_index", track}}));
  }
  return text;
}

std::string trace_file(const std::vector<std::string>& elements,
                       const std::vector<Clock::duration>& clock_errors, int64_t steps) {
  std::vector<double> errors;
  for (const auto error : clock_errors) errors.push_back(microseconds(error));
  const ordered_json about = {{"format", "troika trace 1"},
                              {"ranks", elements.size()},
                              {"first_steps", steps},
                              {"clock_error_microseconds", errors}};
  std::string text = "{\"otherData\": " + text_of(about) + ",\n\"traceEvents\": [\n";
  for (size_t i = 0; i < elements.size(); ++i) text += (i ? ",\n" : "") + elements[i];
  return text + "\n]}\n";
}

}  // namespace troika
