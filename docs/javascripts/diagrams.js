// The theme sets mermaid up when it draws the first diagram of a page; this adds two settings to its own.
// This mermaid puts the diagram's id before that of an arrowhead, so that the theme's rules for `#arrowhead` do not find
// it, and it stays dark on a dark page. A sequence diagram that shrinks to a narrow window cannot be
// read: there it keeps its size, and its box scrolls.
const initialize = mermaid.initialize
mermaid.initialize = settings => initialize({
  ...settings,
  themeCSS: `${settings.themeCSS}
    [id$="-arrowhead"] path, [id$="-filled-head"] path { fill: var(--md-mermaid-sequence-message-line-color); stroke: none }
    [id$="-crosshead"] path { stroke: var(--md-mermaid-sequence-message-line-color) }`,
  sequence: { ...settings.sequence, useMaxWidth: window.innerWidth >= 720 },
})
