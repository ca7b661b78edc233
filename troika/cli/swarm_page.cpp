#include "troika/cli/swarm_page.h"

#include <fmt/format.h>

#include "troika/net/secret.h"
#include "troika/observe/report/html.h"

namespace troika::cli {

namespace {

constexpr const char* kContent =
    R"(<style>
#peers td[data-name=version], #peers td[data-name=address] { overflow-wrap: anywhere; }
</style>
<p id="status" role="status" aria-live="polite">Waits for the first numbers.</p>
<dl class="facts">
<div><dt>step</dt><dd id="step">–</dd></div>
<div><dt>samples of the step</dt><dd><span id="samples">–</span><br>
<progress id="part" aria-label="samples of the step"></progress></dd></div>
<div><dt>samples per second</dt><dd id="rate">–</dd></div>
<div><dt>loss</dt><dd id="loss">–</dd></div>
<div><dt>peers</dt><dd id="count">–</dd></div>
<div><dt>banned peers</dt><dd id="banned_count">–</dd></div>
</dl>
<section>
<h2>Peers</h2>
<div class="wide"><table class="stacks">
<caption>Each peer tells these numbers of itself. Samples and bytes are since it joined.</caption>
<tbody id="peers"></tbody></table></div>
</section>
<section id="bans" hidden>
<h2>Banned peers</h2>
<div class="wide"><table>
<caption>More than half of the others accuse each of them of lies. A ban lasts for ten minutes after the last
accusation.</caption>
<tbody id="banned"></tbody></table></div>
</section>
)";

// All texts go through textContent.
constexpr const char* kScript = R"(
'use strict';
const at = id => document.getElementById(id);
const percent = share => (100 * share).toFixed(0) + ' %';
const loss = value => value === null ? '–' : value.toFixed(4);
const bytes = count => {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (count >= 1024 && unit + 1 < units.length) { count /= 1024; ++unit; }
  return count.toFixed(unit ? 1 : 0) + ' ' + units[unit];
};
const peerColumns = [
  ['peer', p => p.key.slice(0, 8)], ['state', p => p.state], ['step', p => p.step],
  ['samples of the step', p => p.samples], ['samples/s', p => p.samples_per_second.toFixed(1)],
  ['share of samples/s', p => percent(p.share)],
  ['samples given', p => p.contributed_samples.toFixed(0)],
  ['share of samples', p => percent(p.sample_share)],
  ['sent', p => bytes(p.sent_bytes)], ['received', p => bytes(p.received_bytes)],
  ['share of bytes', p => percent(p.byte_share)], ['loss', p => loss(p.loss)],
  ['kind', p => p.kind], ['version', p => p.version || '–'], ['address', p => p.address || '–']];
const bannedColumns = [['peer', p => p.key.slice(0, 16)], ['accused by', p => p.accusers]];

const cell = (tag, text, attributes) => {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
};
const row = (...cells) => {
  const made = document.createElement('tr');
  made.append(...cells);
  return made;
};
const fill = (body, columns, peers) => body.replaceChildren(
  row(...columns.map(([name]) => cell('th', name, {scope: 'col'}))),
  ...peers.map(peer => row(...columns.map(([name, text], i) => i === 0
    ? cell('th', text(peer), {scope: 'row', title: peer.key})
    : cell('td', text(peer), {'data-name': name})))));
const say = text => { if (at('status').textContent !== text) at('status').textContent = text; };

const show = swarm => {
  at('step').textContent = swarm.step;
  at('samples').textContent = swarm.samples.toFixed(0) + ' of ' + swarm.target_batch;
  at('part').max = swarm.target_batch || 1;
  at('part').value = swarm.samples;
  at('rate').textContent = swarm.samples_per_second.toFixed(1);
  at('loss').textContent = loss(swarm.loss);
  at('count').textContent = swarm.peers.length;
  at('banned_count').textContent = swarm.banned.length;
  fill(at('peers'), peerColumns, swarm.peers);
  fill(at('banned'), bannedColumns, swarm.banned);
  at('bans').hidden = swarm.banned.length === 0;
  say(swarm.is_connected ? swarm.peers.length + ' peers take part.'
                         : 'The monitor has no connection to a peer: the numbers are old.');
};
const refresh = async () => {
  try {
    const reply = await fetch('NUMBERS');
    if (!reply.ok) throw new Error(reply.status);
    show(await reply.json());
  } catch (problem) {
    say('The monitor does not answer: the numbers are old.');
  }
  setTimeout(refresh, 2000);
};
refresh();
)";

}  // namespace

net::HttpReply swarm_page(const std::string& run) {
  std::string script = kScript;
  // Relative, so that the page may be behind a web server.
  script.replace(script.find("NUMBERS"), 7, kSwarmNumbers + 1);
  // Scripts without it do not run.
  const auto nonce = net::Secret::random().to_hex();
  return {
      .type = "text/html; charset=utf-8",
      .body = observe::report::page(
          "Swarm " + run,
          fmt::format("{}<script nonce=\"{}\">{}</script>\n", kContent, nonce, script)),
      .policy = fmt::format("default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; "
                            "script-src 'nonce-{}'; base-uri 'none'; form-action 'none'; "
                            "frame-ancestors 'none'",
                            nonce)};
}

}  // namespace troika::cli
