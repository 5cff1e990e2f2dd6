package bench

import (
	"fmt"
	"html"
	"html/template"
	"strings"
)

// chart is a picture of lines over two axes, which svg draws.
type chart struct {
	label  string // what it shows, for who cannot see it
	width  float64
	height float64
	x, y   axis
	xUnit  string // behind the last tick
	lines  []line
	bands  []band
	yText  func(float64) string // of a tick; nil: short
}

// line is a series. Its class is a colour of the page's style sheet.
type line struct {
	name, class string
	points      []point
	step        bool // it holds each value up to the next point
	marks       bool // each point is a dot that tells its number
	area        bool
}

type point struct{ x, y float64 }

// band is a stretch of the x axis with a name.
type band struct {
	from, to float64
	text     string
	class    string
}

// Room around the plot.
const (
	chartLeft, chartRight = 44, 14
	chartTop, chartBottom = 14, 26
	bandRoom              = 16
	letterWidth           = 6.2
	fewestLettersInABand  = 2
)

func (c *chart) px(x float64) float64 {
	return chartLeft + c.x.at(x)*(c.width-chartLeft-chartRight)
}

func (c *chart) py(y float64) float64 { return c.bottom() - c.y.at(y)*(c.bottom()-c.top()) }

func (c *chart) top() float64 {
	if len(c.bands) > 0 {
		return chartTop + bandRoom
	}
	return chartTop
}

func (c *chart) bottom() float64 { return c.height - chartBottom }

// svg draws the chart. All text in it is escaped.
func (c *chart) svg() template.HTML {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %.0f %.0f" role="img" aria-label="%s">`, c.width, c.height, html.EscapeString(c.label))
	c.drawBands(&b)
	c.drawAxes(&b)
	for i := range c.lines {
		c.drawLine(&b, &c.lines[i])
	}
	b.WriteString("</svg>")
	return template.HTML(b.String()) // it is made of numbers and of escaped text
}

func (c *chart) drawBands(b *strings.Builder) {
	for _, band := range c.bands {
		from, to := c.px(band.from), c.px(band.to)
		fmt.Fprintf(b, `<g class="band %s"><rect x="%.1f" y="%.1f" width="%.1f" height="%.1f"/><rect class="cap" x="%.1f" y="%.1f" width="%.1f" height="3"/><title>%s</title>`,
			band.class, from, c.top(), max(0.5, to-from), c.bottom()-c.top(), from, c.top(), max(0.5, to-from), html.EscapeString(band.text))
		if fits := int((to - from) / letterWidth); fits >= len([]rune(band.text)) && fits >= fewestLettersInABand {
			fmt.Fprintf(b, `<text x="%.1f" y="%.1f">%s</text>`, from+2, c.top()-5, html.EscapeString(band.text))
		}
		b.WriteString("</g>")
	}
}

func (c *chart) drawAxes(b *strings.Builder) {
	text := c.yText
	if text == nil {
		text = short
	}
	for _, tick := range c.y.ticks {
		y := c.py(tick)
		fmt.Fprintf(b, `<path class="grid" d="M%d %.1fH%.1f"/><text class="tick" x="%d" y="%.1f" text-anchor="end">%s</text>`,
			chartLeft, y, c.width-chartRight, chartLeft-6, y+3.5, html.EscapeString(text(tick)))
	}
	last := -1e9
	for i, tick := range c.x.ticks {
		x, label := c.px(tick), short(tick)
		if i == len(c.x.ticks)-1 {
			label += c.xUnit
		}
		if x-last < letterWidth*float64(len(label))+8 {
			continue
		}
		last = x
		anchor := "middle"
		if x > c.width-30 {
			anchor = "end"
			x = c.width - 2
		}
		fmt.Fprintf(b, `<text class="tick" x="%.1f" y="%.1f" text-anchor="%s">%s</text>`, x, c.bottom()+17, anchor, html.EscapeString(label))
	}
	fmt.Fprintf(b, `<path class="axis" d="M%d %.1fH%.1f"/>`, chartLeft, c.bottom(), c.width-chartRight)
}

func (c *chart) drawLine(b *strings.Builder, l *line) {
	if len(l.points) == 0 {
		return
	}
	var d strings.Builder
	for i, p := range l.points {
		switch x, y := c.px(p.x), c.py(p.y); {
		case i == 0:
			fmt.Fprintf(&d, "M%.1f %.1f", x, y)
		case l.step:
			fmt.Fprintf(&d, "H%.1fV%.1f", x, y)
		default:
			fmt.Fprintf(&d, "L%.1f %.1f", x, y)
		}
	}
	fmt.Fprintf(b, `<g class="line %s"><title>%s</title>`, l.class, html.EscapeString(l.name))
	if l.area {
		fmt.Fprintf(b, `<path class="area" d="%sV%.1fH%.1fZ"/>`, d.String(), c.bottom(), c.px(l.points[0].x))
	}
	fmt.Fprintf(b, `<path class="stroke" d="%s"/>`, d.String())
	if l.marks {
		for _, p := range l.points {
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="4"><title>%s</title></circle>`,
				c.px(p.x), c.py(p.y), html.EscapeString(fmt.Sprintf("%s, %s: %s", l.name, short(p.x), number(p.y))))
		}
	}
	b.WriteString("</g>")
}
