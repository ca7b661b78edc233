#include "troika/layout/outer_exchange.h"

#include <fmt/format.h>

#include "troika/base/config.h"
#include "troika/layout/errors/refuse.h"

namespace troika::layout {

void OuterExchange::verify(int64_t period) const {
  if (!is_on) {
    if (*this != OuterExchange()) {
      refuse("values of outer steps", "exchange.outer_step false", "exchange.outer_step true");
    }
    return;
  }
  if (period == 0) return;
  if (period % fragments != 0) {
    refuse("fragments of outer steps", fmt::format("{} inner steps for {}", period, fragments),
           "a multiple of the number of fragments, so that one steps at a time");
  }
  if (delay >= interval(period)) {
    refuse("the delay of outer steps", fmt::format("{} inner steps", delay),
           fmt::format("less than {}, the inner steps from one outer step to the next one",
                       interval(period)));
  }
}

std::string OuterExchange::text() const {
  if (!is_on) return {};
  std::string text = fmt::format(", by an outer SGD of rate {} and momentum {}", lr, momentum);
  if (fragments > 1) text += fmt::format(", in {} fragments", fragments);
  if (delay > 0) text += fmt::format(", {} steps after they were sent", delay);
  if (mixing > 0) text += fmt::format(", mixed with {} of a rank's own", mixing);
  if (codec != "none") text += ", sent as " + codec;
  return text;
}

void add_keys(config::Table& table, OuterExchange& outer) {
  table.add(
      "exchange.outer_step", &outer.is_on,
      "local_steps: an outer SGD with Nesterov momentum uses the averages as gradients (DiLoCo)");
  table.add("exchange.outer_lr", &outer.lr, "outer SGD: learning rate", config::above(0.0));
  table.add("exchange.outer_momentum", &outer.momentum, "outer SGD: momentum",
            config::from_to_below(0.0, 1.0));
  table.add("exchange.outer_fragments", &outer.fragments,
            "outer SGD: number of parts of the model, which step at different times",
            config::count_from(1));
  table.add("exchange.outer_delay", &outer.delay,
            "outer SGD: number of steps of a rank from the sending of its changes to the outer "
            "step",
            config::count_from(0));
  table.add("exchange.outer_mixing", &outer.mixing,
            "outer SGD: part of a rank's own weights in its weights after an outer step",
            config::between(0.0, 1.0));
  table.add("exchange.outer_codec", &outer.codec, "outer SGD: compression of the changes",
            config::one_of({"none", "fp16", "bf16", "int8"}));
}

}  // namespace troika::layout
