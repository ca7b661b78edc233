#include "troika/parallel/exchange.h"

#include "troika/base/error.h"

namespace troika::parallel {

void Exchange::refuse_state(const std::string& name) {
  throw Error("parallel", ErrorKind::usage,
              {.what = "a saved state does not fit",
               .got = name,
               .hint = "load with the model, strategy and options it was saved with"});
}

}  // namespace troika::parallel
