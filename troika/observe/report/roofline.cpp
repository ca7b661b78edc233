#include "troika/observe/report/roofline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "troika/observe/report/chart.h"
#include "troika/observe/report/html.h"
#include "troika/observe/report/stragglers.h"
#include "troika/observe/report/style.h"

namespace troika::observe::report {

namespace {

constexpr const char* kTitle = "Roofline";

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// A phase over all ranks. Times are in milliseconds.
struct PhaseWork {
  std::string name;
  double time = 0;  // the mean over the ranks
  double flops = 0;
  double bytes = 0;
  double bound = 0;

  double flops_per_second() const { return flops / (time / 1e3); }
  double bytes_per_second() const { return bytes / (time / 1e3); }
};

// The last entry is the whole step.
std::vector<PhaseWork> phases_of(const RunSummary& summary) {
  std::vector<PhaseWork> phases;
  PhaseWork all{.name = "step"};
  for (const auto& [phase, milliseconds] : summary.phase_milliseconds) {
    if (phase == all.name) {
      all.time = mean(milliseconds);
      continue;
    }
    PhaseWork one{.name = phase, .time = mean(milliseconds)};
    for (const auto& work : summary.roofline->work) {
      if (work.phase != phase) continue;
      one.flops = work.flops;
      one.bytes = work.bytes;
      one.bound = work.bound_milliseconds;
    }
    all.flops += one.flops;
    all.bytes += one.bytes;
    all.bound += one.bound;
    phases.push_back(one);
  }
  phases.push_back(all);
  return phases;
}

std::string giga(double value, bool is_known) {
  return is_known ? number(value / 1e9) : "–";
}

std::string table_of(const std::vector<PhaseWork>& phases, const Roofline& roof) {
  std::vector<Cells> rows;
  for (const auto& phase : phases) {
    const bool computes = phase.flops > 0, moves = phase.bytes > 0;
    rows.push_back(
        {spaced(phase.name), number(phase.time), percent(phase.time / phases.back().time),
         giga(phase.flops, computes), giga(phase.flops_per_second(), computes),
         computes ? percent(phase.flops_per_second() / roof.flops_per_second) : "–",
         giga(phase.bytes, moves), giga(phase.bytes_per_second(), moves),
         moves ? number(phase.bound) : "–", moves ? percent(phase.bound / phase.time) : "–"});
  }
  return table("Phases of a step; means of the ranks' median times, sums of their work",
               {"phase", "ms", "share of the step", "GFLOP", "GFLOP/s", "of the peak", "GB", "GB/s",
                "bound, ms", "bound ÷ time"},
               rows);
}

std::vector<Tick> decades(const Scale& scale) {
  std::vector<Tick> result;
  for (double at = std::ceil(scale.range.low); at <= scale.range.high; at += 1) {
    result.push_back({scale(at), fmt::format("{:g}", std::pow(10, at))});
  }
  return result;
}

// Both axes are logarithmic: FLOPs per byte, and GFLOP/s.
std::string plot(const std::vector<PhaseWork>& phases, const Roofline& roof) {
  const double ridge = roof.flops_per_second / roof.bytes_per_second;
  Range intensities, rates;
  intensities.include(std::log10(ridge));
  rates.include(std::log10(roof.flops_per_second / 1e9));
  std::vector<PhaseWork> drawn;
  for (const auto& phase : phases) {
    if (!(phase.flops > 0 && phase.bytes > 0 && phase.time > 0)) continue;
    drawn.push_back(phase);
    intensities.include(std::log10(phase.flops / phase.bytes));
    rates.include(std::log10(phase.flops_per_second() / 1e9));
  }
  // An additional decade on each side shows both parts of the roof.
  const Scale x{{std::floor(intensities.low - 0.5), std::ceil(intensities.high + 0.5)}};
  const Scale y{{std::floor(rates.low - 0.5), std::ceil(rates.high)}};
  const auto place = [&](double intensity, double rate) {
    const double low = std::pow(10, y.range.low);
    return fmt::format("{:.1f} {:.1f}", kSide * x(std::log10(intensity)),
                       kSide * (1 - y(std::log10(std::max(rate / 1e9, low)))));
  };
  // The point where the slope enters the drawing, at its left or lower edge.
  const double left =
      std::max(std::pow(10, x.range.low), std::pow(10, y.range.low) * 1e9 / roof.bytes_per_second);
  std::string marks =
      fmt::format("<path class=\"line l5\" d=\"M{}L{}L{}\"/>\n",
                  place(left, left * roof.bytes_per_second), place(ridge, roof.flops_per_second),
                  place(std::pow(10, x.range.high), roof.flops_per_second));
  std::vector<LegendEntry> legend{{"what the machine can do", 5}};
  for (const auto& phase : drawn) {
    const size_t colour = legend.size() - 1;
    legend.push_back({spaced(phase.name), colour});
    marks += fmt::format(
        "<path class=\"dot l{}\" d=\"M{}h0\"><title>{}: {:.4g} GFLOP/s at {:.3g} FLOP/byte</title>"
        "</path>\n",
        colour, place(phase.flops / phase.bytes, phase.flops_per_second()), spaced(phase.name),
        phase.flops_per_second() / 1e9, phase.flops / phase.bytes);
  }
  return draw({.title = "Rates of the products, and the roof above them",
               .x_label = "FLOPs for each byte",
               .y_label = "GFLOP/s",
               .x_ticks = decades(x),
               .y_ticks = decades(y),
               .height = 210,
               .marks = marks,
               .legend = legend});
}

std::string slowest_rank(const RunSummary& summary) {
  if (summary.world_size == 1) return "";
  const auto own = own_times(summary.phase_milliseconds);
  const auto slowest = std::ranges::max_element(own);
  return fmt::format(
      " Rank {} is the slowest: it takes {} ms a step by itself, the ranks' mean is {} ms.",
      slowest - own.begin(), number(*slowest), number(mean(own)));
}

}  // namespace

std::string roofline(const RunRecord& run) {
  if (!run.summary || !run.summary->roofline || run.summary->phase_milliseconds.empty()) {
    return section(kTitle,
                   "<p>The run did not measure it. <code>--throughput.enabled=true</code> has runs "
                   "do so when they start.</p>\n");
  }
  const RunSummary& summary = *run.summary;
  const Roofline& roof = *summary.roofline;
  const auto phases = phases_of(summary);
  const auto& step = phases.back();
  const auto exposed = std::ranges::find(phases, "exposed_communication", &PhaseWork::name);
  std::string text = fmt::format(
      "The step computes {} GFLOP/s, {} of the {} GFLOP/s that products of large matrices reach on "
      "this machine. Its memory moves {} GB/s. Both were measured on all ranks at once when the "
      "run "
      "began.",
      number(step.flops_per_second() / 1e9),
      percent(step.flops_per_second() / roof.flops_per_second), number(roof.flops_per_second / 1e9),
      number(roof.bytes_per_second / 1e9));
  if (exposed != phases.end()) {
    text += fmt::format(" Exposed communication takes {} of the step.",
                        percent(exposed->time / step.time));
  }
  return section(
      kTitle,
      paragraph(text + slowest_rank(summary)) + plot(phases, roof) + table_of(phases, roof) +
          paragraph(
              "FLOPs are those of matrix products, convolutions and fused attention. Bytes are "
              "what "
              "these must at least move, their operands and results, and what the optimizer reads "
              "and writes; norms and activations come on top. The bound is the time in which the "
              "machine could do that: for each product, computing or moving, whichever is "
              "longer."));
}

}  // namespace troika::observe::report
