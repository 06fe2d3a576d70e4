// Asks robfig/cron when expressions match. See cron_parsers.py for the argument and the answers.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/robfig/cron"
)

func answer(text, zone, start string, count int) any {
	fields := cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor
	if strings.Count(text, " ") == 5 {
		fields |= cron.Second
	}
	schedule, err := cron.NewParser(fields).Parse("CRON_TZ=" + zone + " " + text)
	if err != nil {
		return "refused: " + err.Error()
	}
	at, _ := time.Parse(time.RFC3339, start)
	times := []string{}
	for len(times) < count {
		at = schedule.Next(at)
		times = append(times, at.UTC().Format(time.RFC3339))
	}
	return times
}

func main() {
	var cases [][]any
	if err := json.Unmarshal([]byte(os.Args[1]), &cases); err != nil {
		panic(err)
	}
	for _, one := range cases {
		line, _ := json.Marshal(answer(one[1].(string), one[2].(string), one[3].(string), int(one[4].(float64))))
		fmt.Println(string(line))
	}
}
