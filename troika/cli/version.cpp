#include <CLI/CLI.hpp>

#include <iostream>

#include "troika/cli/commands.h"
#include "troika/compat/torch.h"
#include "troika/observe/summary.h"

namespace troika::cli {

std::string versions() {
  return "troika " + observe::troika_version() + ", LibTorch " + compat::torch_version();
}

Entry add_version(CLI::App& app) {
  auto* command = app.add_subcommand("version", "print the versions of Troika and LibTorch");
  return {command, [] {
            std::cout << versions() << '\n';
            return 0;
          }};
}

}  // namespace troika::cli
