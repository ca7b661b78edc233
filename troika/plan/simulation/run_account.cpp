#include "troika/plan/simulation/run_account.h"

#include <algorithm>
#include <utility>

namespace troika::plan {

using layout::Action;
using layout::ActionKind;

RunAccount::RunAccount(const SimulatedRun& run, const RankPrograms& programs)
    : run_(run), programs_(programs) {
  const auto ranks = static_cast<size_t>(programs.ranks());
  result_.ranks.resize(ranks);
  result_.step_seconds.resize(static_cast<size_t>(run.steps));
  passes_.assign(static_cast<size_t>(run.steps), std::vector<StepPasses>(ranks));
  memory_.resize(ranks);
  for (int stage = 0; stage < programs.stages(); ++stage) {
    const auto order = layout::asynchronous_stage(run.plan.asynchronous(), stage);
    const auto& work = run.stage(stage);
    const double older = static_cast<double>(order.most_versions() - 1) * work.parameter_bytes;
    for (const int rank : programs.ranks_of(programs.place_of_stage(stage))) {
      bytes(rank) += work.resident_bytes + older;
    }
  }
}

void RunAccount::receive(int rank, double more) {
  use(rank).received_bytes += more;
  bytes(rank) += more;
  note_peak(rank);
}

void RunAccount::note_peak(int rank) {
  auto& own = memory_[static_cast<size_t>(rank)];
  own.peak = std::max(own.peak, own.bytes + own.workspace);
}

double RunAccount::taken_bytes(const ProgramItem& item, ActionKind receive) const {
  double bytes = 0;
  for (const auto& taken : item.takes) {
    if (taken.kind != receive) continue;
    // Gradients have as many bytes as the outputs that they belong to.
    const bool is_activation = receive == ActionKind::receive_activation;
    bytes += run_.stage(is_activation ? peer_stage(taken) : taken.stage).output_bytes;
  }
  return bytes;
}

double RunAccount::workspace_of(int rank, const Action& pass) const {
  const auto& stage = run_.stage(pass.stage);
  switch (pass.kind) {
    case ActionKind::backward_input:
      return stage.input_workspace_bytes;
    case ActionKind::backward_weight:
      return stage.weight_workspace_bytes;
    case ActionKind::backward: {
      const auto& own = memory_[static_cast<size_t>(rank)];
      const bool makes = stage.gradient_bytes > 0 && !own.with_gradients.contains(pass.stage);
      return makes ? stage.first_workspace_bytes : stage.workspace_bytes;
    }
    default:
      return stage.workspace_bytes;
  }
}

void RunAccount::add_gradients(int rank, int stage) {
  auto& own = memory_[static_cast<size_t>(rank)];
  if (own.with_gradients.insert(stage).second) own.bytes += run_.stage(stage).gradient_bytes;
}

void RunAccount::begin_passes(int rank, const ProgramItem& item) {
  auto& workspace = memory_[static_cast<size_t>(rank)].workspace;
  for (const auto& pass : passes_of(item)) {
    const auto& stage = run_.stage(pass.stage);
    if (pass.kind == ActionKind::forward) {
      bytes(rank) += stage.activation_bytes + stage.input_bytes;
    }
    workspace = std::max(workspace, workspace_of(rank, pass));
    // A pass in one part has them in its workspace.
    if (pass.kind == ActionKind::backward_input) add_gradients(rank, pass.stage);
  }
  // From now on, a taken message is part of StageWork::input_bytes.
  bytes(rank) -= taken_bytes(item, ActionKind::receive_activation);
  note_peak(rank);
}

void RunAccount::end_pass(int rank, int step, const ProgramItem& item, const PassTimes& times) {
  auto& passes = passes_[static_cast<size_t>(step)][static_cast<size_t>(rank)];
  passes.first = std::min(passes.first, times.begin);
  passes.last = times.end;
  passes.busy += times.computed;
  use(rank).compute_seconds += times.computed;
  memory_[static_cast<size_t>(rank)].workspace = 0;
  for (const auto& pass : passes_of(item)) {
    free_activations(rank, pass);
    if (pass.kind == ActionKind::backward) add_gradients(rank, pass.stage);
  }
  bytes(rank) -= taken_bytes(item, ActionKind::receive_gradient);
  note_peak(rank);
  if (!run_.records_trace) return;
  std::string text;
  for (const auto& pass : passes_of(item)) text += (text.empty() ? "" : "+") + text_of(pass);
  const bool is_forward = item.action.kind == ActionKind::forward;
  record({rank, step, "compute", is_forward ? "forward" : "backward", times.begin, times.end});
  record({rank, step, "passes", text, times.begin, times.end});
}

void RunAccount::free_activations(int rank, const Action& pass) {
  const auto& stage = run_.stage(pass.stage);
  // The part that needs a message last frees it.
  const double input = stage.weight_part_takes_input ? stage.input_bytes : 0;
  const double gradient = stage.weight_part_takes_gradient ? stage.output_bytes : 0;
  if (pass.kind == ActionKind::backward) bytes(rank) -= stage.activation_bytes + stage.input_bytes;
  if (pass.kind == ActionKind::backward_input) {
    bytes(rank) += stage.weight_part_bytes - stage.activation_bytes;
    bytes(rank) -= stage.input_bytes - input;
    bytes(rank) += gradient;  // end_pass() frees it
  }
  if (pass.kind == ActionKind::backward_weight) {
    bytes(rank) -= stage.weight_part_bytes + input + gradient;
  }
}

void RunAccount::end_update(int rank, int step, double begin, double end) {
  use(rank).compute_seconds += end - begin;
  for (const int stage : std::exchange(memory_[static_cast<size_t>(rank)].with_gradients, {})) {
    bytes(rank) -= run_.stage(stage).gradient_bytes;
  }
  record({rank, step, "compute", "optimizer", begin, end});
}

void RunAccount::end_step(int step, double now) {
  auto& end = result_.step_seconds[static_cast<size_t>(step)];
  end = std::max(end, now);
}

void RunAccount::record(SimulatedSpan span) {
  if (run_.records_trace) result_.spans.push_back(std::move(span));
}

void RunAccount::add_bubbles() {
  double rates = 0;
  for (const auto& ranks : passes_) {
    const auto longest = std::ranges::max_element(ranks, {}, &StepPasses::span);
    if (longest->span() == 0) continue;
    rates += (longest->span() - longest->busy) / longest->span();
  }
  result_.bubble_rate = rates / run_.steps;
  const auto& ranks = passes_.front();
  const auto first = std::ranges::min_element(ranks, {}, &StepPasses::first);
  const auto last = std::ranges::max_element(ranks, {}, &StepPasses::last);
  result_.makespan = last->last - first->first;
}

RunSimulation RunAccount::finish(const std::vector<LinkTraffic>& traffic) {
  add_bubbles();
  auto& ends = result_.step_seconds;
  result_.seconds = ends.back();
  for (size_t step = 0; run_.records_trace && step < ends.size(); ++step) {
    for (int rank = 0; rank < programs_.ranks(); ++rank) {
      const double begin = step == 0 ? 0 : ends[step - 1];
      record({rank, static_cast<int>(step), "compute", "step", begin, ends[step]});
    }
  }
  for (size_t step = ends.size(); step-- > 1;) ends[step] -= ends[step - 1];
  for (int rank = 0; rank < programs_.ranks(); ++rank) {
    auto& own = use(rank);
    own.idle_seconds = result_.seconds - own.compute_seconds - own.exposed_seconds;
    own.peak_bytes = memory_[static_cast<size_t>(rank)].peak;
    for (double* sum : {&own.compute_seconds, &own.exposed_seconds, &own.idle_seconds,
                        &own.sent_bytes, &own.received_bytes}) {
      *sum /= run_.steps;
    }
  }
  result_.links = traffic;
  return std::move(result_);
}

}  // namespace troika::plan
